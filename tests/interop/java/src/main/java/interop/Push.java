package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Push consumers of one group: writes each message they get and each change of the queues they hold. */
final class Push {
    private static final int QUEUE_TABLE_POLL_MS = 5;
    /**
     * Not the default of 30 s. A rebalance changes the subscription's version and announces it by a heartbeat,
     * which the client leaves out when another one is just being sent; until the next one the broker refuses
     * its pulls as "subscription not latest". Seen with Apache's own broker.
     */
    private static final int HEARTBEAT_MS = 1000;
    /** Not the default of 5 s, so that a test soon sees all that was received committed. */
    private static final int PERSIST_OFFSETS_MS = 500;

    private final String topic;
    private final int expected;
    private final Set<Integer> seen = ConcurrentHashMap.newKeySet();
    private final AtomicInteger total = new AtomicInteger();
    private final CountDownLatch complete = new CountDownLatch(1);

    private Push(String topic, int expected) {
        this.topic = topic;
        this.expected = expected;
    }

    static void run(String namesrv, String topic, String group, int expected, int timeoutS, Interop.Options options)
        throws Exception {
        CountDownLatch told = Interop.toldToStop();
        Push push = new Push(topic, expected);
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < options.number("instances", 1); i++) {
            String name = "c" + i + "-" + ProcessHandle.current().pid();
            DefaultMQPushConsumer consumer = push.consumer(namesrv, group, name, options);
            consumers.add(consumer);
            push.watchQueues(consumer, name);
            Events.write("starting", "consumer", name);
            consumer.start();
            Events.write("started", "consumer", name, "clientId", consumer.buildMQClientId(),
                "serialization", RemotingCommand.getSerializeTypeConfigInThisServer().name());
        }
        boolean stay = options.flag("stay") || expected == 0;
        boolean inTime = (stay ? told : push.complete).await(timeoutS, TimeUnit.SECONDS);
        if (!inTime) {
            Events.write("timeout", "unique", push.seen.size(), "total", push.total.get());
        }
        for (DefaultMQPushConsumer consumer : consumers) {
            consumer.shutdown();
        }
        Events.write("ended", "unique", push.seen.size(), "total", push.total.get());
    }

    private DefaultMQPushConsumer consumer(String namesrv, String group, String name, Interop.Options options)
        throws Exception {
        Capture capture = new Capture(name, options.flag("capture"), options.flag("deaf"));
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, capture, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(name);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setPersistConsumerOffsetInterval(PERSIST_OFFSETS_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.setConsumeMessageBatchMaxSize(options.number("batch", 1));
        consumer.setPullBatchSize(options.number("pull", 32));
        consumer.setPullInterval(options.number("interval", 0));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            received(name, messages, context));
        return consumer;
    }

    private ConsumeConcurrentlyStatus received(
        String name, List<MessageExt> messages, ConsumeConcurrentlyContext context) {
        Events.write("batch", "consumer", name, "count", messages.size(),
            "queueId", context.getMessageQueue().getQueueId());
        for (MessageExt message : messages) {
            int index = Integer.parseInt(message.getUserProperty(Content.INDEX));
            total.incrementAndGet();
            Events.write("message", "consumer", name, "index", index, "sha1", Content.sha1(message.getBody()),
                "size", message.getBody().length, "topic", message.getTopic(), "keys", message.getKeys(),
                "tags", message.getTags(), "queueId", message.getQueueId(), "queueOffset", message.getQueueOffset(),
                "msgId", message.getMsgId(), "bornAt", message.getBornTimestamp(),
                "storeAt", message.getStoreTimestamp(), "reconsumeTimes", message.getReconsumeTimes(),
                "properties", new TreeMap<>(message.getProperties()));
            if (seen.add(index) && seen.size() == expected) {
                Events.write("complete", "unique", expected, "total", total.get());
                complete.countDown();
            }
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    /** Both client versions keep the allocation in this table and neither announces its changes. */
    private void watchQueues(DefaultMQPushConsumer consumer, String name) {
        Map<MessageQueue, ProcessQueue> table =
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
        Thread watcher = new Thread(() -> {
            Set<Integer> known = null;
            while (true) {
                Set<Integer> held = new TreeSet<>();
                for (Map.Entry<MessageQueue, ProcessQueue> entry : table.entrySet()) {
                    if (entry.getKey().getTopic().equals(topic) && !entry.getValue().isDropped()) {
                        held.add(entry.getKey().getQueueId());
                    }
                }
                if (!held.equals(known)) {
                    known = held;
                    Events.write("queues", "consumer", name, "queues", held);
                }
                try {
                    Thread.sleep(QUEUE_TABLE_POLL_MS);
                } catch (InterruptedException stopped) {
                    return;
                }
            }
        }, "queues-" + name);
        watcher.setDaemon(true);
        watcher.start();
    }
}
