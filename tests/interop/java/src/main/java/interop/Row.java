package interop;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * One row while it runs: its topics, groups and clients, which all carry the row's name, and its facts.
 * Whoever watches the wire tells by a client's id which row it belongs to.
 */
final class Row implements AutoCloseable {
    static final int WAIT_S = 120;
    /** Not the defaults of 3 to 5 s: on few and busy cores a good answer may come later. */
    static final int ANSWER_MS = 30_000;
    private static final int POLL_MS = 50;

    final String name;
    final String label;
    final String namesrv;
    final int count;
    private final Deque<AutoCloseable> open = new ArrayDeque<>();
    private final List<Member> members = new CopyOnWriteArrayList<>();

    Row(String label, String name, String namesrv, int count) {
        this.label = label;
        this.name = name;
        this.namesrv = namesrv;
        this.count = count;
    }

    String topic() {
        return label + "-" + name;
    }

    String topic(String suffix) {
        return topic() + "-" + suffix;
    }

    /** Groups are named as topics are. */
    String group() {
        return topic();
    }

    String group(String suffix) {
        return topic(suffix);
    }

    /** A client's instance name; the broker sees it behind the address in the client's id. */
    String instance(String suffix) {
        return topic(suffix);
    }

    void write(String event, Object... namesAndValues) {
        Object[] all = new Object[namesAndValues.length + 2];
        all[0] = "row";
        all[1] = name;
        System.arraycopy(namesAndValues, 0, all, 2, namesAndValues.length);
        Events.write(event, all);
    }

    void sent(int index, SendResult result) {
        write("sent", "index", index, "status", result.getSendStatus(), "msgId", result.getMsgId(),
            "offsetMsgId", result.getOffsetMsgId(), "queueId", result.getMessageQueue().getQueueId(),
            "queueOffset", result.getQueueOffset());
    }

    void failed(int index, Throwable error) {
        write("failed", "index", index, "error", error.toString());
    }

    void message(String consumer, MessageExt message) {
        write("message", "consumer", consumer, "index", Integer.parseInt(message.getUserProperty(Content.INDEX)),
            "sha1", Content.sha1(message.getBody()), "size", message.getBody().length, "topic", message.getTopic(),
            "keys", message.getKeys(), "tags", message.getTags(), "queueId", message.getQueueId(),
            "queueOffset", message.getQueueOffset(), "msgId", message.getMsgId(),
            "bornAt", message.getBornTimestamp(), "storeAt", message.getStoreTimestamp(),
            "reconsumeTimes", message.getReconsumeTimes(), "properties", new TreeMap<>(message.getProperties()));
    }

    /** What was opened last is closed first, when the row ends. */
    <T extends AutoCloseable> T closing(T closeable) {
        synchronized (open) {
            open.push(closeable);
        }
        return closeable;
    }

    void joined(Member member) {
        members.add(member);
        closing(member);
    }

    /** Every member says to the broker how far it has come. */
    void persist() {
        members.forEach(Member::persist);
    }

    @Override
    public void close() throws Exception {
        while (!open.isEmpty()) {
            open.pop().close();
        }
    }

    /** A client of this row: whom it asks, what it is called, and how long it waits for an answer. */
    <T extends ClientConfig> T named(T client, String suffix) {
        client.setNamesrvAddr(namesrv);
        client.setInstanceName(instance(suffix));
        client.setMqClientApiTimeout(ANSWER_MS);
        return client;
    }

    DefaultMQProducer producer() throws Exception {
        return producer("producer", null);
    }

    DefaultMQProducer producer(String suffix, RPCHook hook) throws Exception {
        return producer(suffix, hook, 30_000);
    }

    DefaultMQProducer producer(String suffix, RPCHook hook, int routeMillis) throws Exception {
        DefaultMQProducer producer = named(new DefaultMQProducer(group(suffix), hook), suffix);
        producer.setPollNameServerInterval(routeMillis);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        closing(producer::shutdown);
        return producer;
    }

    DefaultMQAdminExt admin() throws Exception {
        DefaultMQAdminExt admin = named(new DefaultMQAdminExt(ANSWER_MS), "admin");
        admin.start();
        return admin;
    }

    /** Make a topic, or give an old one more queues, and wait until its route says so. */
    void createTopic(String topic, int queues) throws Exception {
        DefaultMQAdminExt admin = admin();
        try {
            TopicConfig config = new TopicConfig(topic);
            config.setReadQueueNums(queues);
            config.setWriteQueueNums(queues);
            admin.createAndUpdateTopicConfig(brokerAddress(admin), config);
            until("route of " + topic, () -> {
                var route = admin.examineTopicRouteInfo(topic);
                return route.getQueueDatas().get(0).getReadQueueNums() == queues;
            });
        } finally {
            admin.shutdown();
        }
    }

    static String brokerAddress(DefaultMQAdminExt admin) throws Exception {
        return admin.examineTopicRouteInfo("TBW102").getBrokerDatas().get(0).selectBrokerAddr();
    }

    /** Ask until the answer is yes; an exception counts as not yet, and as the reason in the end. */
    void until(String what, Callable<Boolean> question) throws Exception {
        until(what, WAIT_S, question);
    }

    void until(String what, int seconds, Callable<Boolean> question) throws Exception {
        long deadline = System.nanoTime() + seconds * 1_000_000_000L;
        Exception last = null;
        while (true) {
            try {
                if (question.call()) {
                    return;
                }
                last = null;
            } catch (Exception notYet) {
                last = notYet;
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("no " + what + " within " + seconds + " s", last);
            }
            Thread.sleep(POLL_MS);
        }
    }

    /** The queues of a topic in the order of their numbers. */
    static List<MessageQueue> ordered(Collection<MessageQueue> queues) {
        List<MessageQueue> list = new ArrayList<>(queues);
        list.sort(null);
        return list;
    }

    /** Wait until a topic holds so many messages, and write where its queues end. */
    void untilStored(DefaultMQProducer producer, String topic, int messages) throws Exception {
        until(messages + " messages in " + topic, () -> {
            long stored = 0;
            for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
                stored += producer.maxOffset(queue);
            }
            return stored >= messages;
        });
        Map<Integer, Long> ends = new TreeMap<>();
        for (MessageQueue queue : ordered(producer.fetchPublishMessageQueues(topic))) {
            ends.put(queue.getQueueId(), producer.maxOffset(queue));
        }
        write("ends", "topic", topic, "ends", new ArrayList<>(ends.values()));
    }
}
