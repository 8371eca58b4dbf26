package interop;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Predicate;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.consumer.store.RemoteBrokerOffsetStore;
import org.apache.rocketmq.client.impl.consumer.ProcessQueue;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/** One push consumer of a row: writes each message it gets and each change of the queues it holds. */
final class Member implements AutoCloseable {
    private static final int QUEUE_TABLE_POLL_MS = 5;
    /**
     * Not the default of 30 s. A rebalance changes the subscription's version and announces it by a heartbeat,
     * which the client leaves out when another one is just being sent; until the next one the broker refuses
     * its pulls as "subscription not latest". Seen with Apache's own broker.
     */
    private static final int HEARTBEAT_MS = 1000;
    /** Not the default of 5 s, so that a row soon sees all that was received committed. */
    private static final int PERSIST_OFFSETS_MS = 500;

    final Row row;
    final String name;
    final DefaultMQPushConsumer consumer;
    private final List<String> topics = new ArrayList<>();
    private volatile boolean open = true;

    /** What the application does with a message: true when it succeeded. */
    interface Handling {
        boolean handle(MessageExt message) throws Exception;
    }

    Member(Row row, String group, String name) throws Exception {
        this(row, group, name, null, new AllocateMessageQueueAveragely());
    }

    Member(Row row, String group, String name, RPCHook hook, AllocateMessageQueueStrategy strategy) throws Exception {
        this.row = row;
        this.name = name;
        consumer = row.named(new DefaultMQPushConsumer(group, hook, strategy), name);
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setPersistConsumerOffsetInterval(PERSIST_OFFSETS_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
    }

    Member subscribe(String topic, String expression) throws Exception {
        consumer.subscribe(topic, expression);
        topics.add(topic);
        return this;
    }

    Member subscribe(String topic, MessageSelector selector) throws Exception {
        consumer.subscribe(topic, selector);
        topics.add(topic);
        return this;
    }

    /** The enumeration moved between the client's versions, its name and its values did not. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    Member broadcasting() throws Exception {
        for (var method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                method.invoke(consumer, Enum.valueOf((Class<Enum>) method.getParameterTypes()[0], "BROADCASTING"));
                return this;
            }
        }
        throw new IllegalStateException("the push consumer has no message model");
    }

    /** The broker shares the queues; clients before 5.0 always do it themselves. */
    Member sharedByBroker() throws Exception {
        DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        return this;
    }

    Member concurrently(Tally tally) throws Exception {
        return concurrently(tally, message -> true);
    }

    Member concurrently(Tally tally, Handling handling) throws Exception {
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (consumer.getConsumeMessageBatchMaxSize() > 1) {
                row.write("batch", "consumer", name, "count", messages.size());
            }
            boolean done = true;
            for (MessageExt message : messages) {
                done &= handled(tally, handling, message);
            }
            return done ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        return this;
    }

    Member orderly(Tally tally, Handling handling) throws Exception {
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            context.setSuspendCurrentQueueTimeMillis(10);
            boolean done = true;
            for (MessageExt message : messages) {
                done &= handled(tally, handling, message);
            }
            return done ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        });
        return this;
    }

    private boolean handled(Tally tally, Handling handling, MessageExt message) {
        row.message(name, message);
        boolean done;
        try {
            done = handling.handle(message);
        } catch (Exception error) {
            row.write("error", "consumer", name, "queueId", message.getQueueId(), "queueOffset",
                message.getQueueOffset(), "error", error.toString());
            done = false;
        }
        if (done) {
            tally.count(message);
        }
        return done;
    }

    Member start() throws Exception {
        row.write("starting", "consumer", name);
        consumer.start();
        row.write("started", "consumer", name, "clientId", consumer.buildMQClientId());
        row.joined(this);
        watchQueues();
        return this;
    }

    void persist() {
        if (open) {
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        }
    }

    @Override
    public void close() {
        if (open) {
            open = false;
            // From here on listeners may be interrupted, and a queue be given up that one still has in hand.
            row.write("closing", "consumer", name);
            consumer.shutdown();
        }
    }

    /** The queues it holds of its first topic. */
    Set<Integer> held() {
        Set<Integer> held = new TreeSet<>();
        Map<MessageQueue, ProcessQueue> table =
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
        for (Map.Entry<MessageQueue, ProcessQueue> entry : table.entrySet()) {
            if (entry.getKey().getTopic().equals(topics.get(0)) && !entry.getValue().isDropped()) {
                held.add(entry.getKey().getQueueId());
            }
        }
        return held;
    }

    /** The queues it holds of its first topic, with their brokers. */
    Set<String> places() {
        Set<String> held = new TreeSet<>();
        Map<MessageQueue, ProcessQueue> table =
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
        for (Map.Entry<MessageQueue, ProcessQueue> entry : table.entrySet()) {
            if (entry.getKey().getTopic().equals(topics.get(0)) && !entry.getValue().isDropped()) {
                held.add(entry.getKey().getBrokerName() + "/" + entry.getKey().getQueueId());
            }
        }
        return held;
    }

    /** Both client versions keep the allocation in a table and neither announces its changes. */
    private void watchQueues() {
        Thread watcher = new Thread(() -> {
            Set<Integer> known = null;
            while (open) {
                Set<Integer> held = held();
                if (!held.equals(known)) {
                    known = held;
                    row.write("queues", "consumer", name, "queues", held);
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

    void untilHolding(int queues) throws Exception {
        row.until(name + " holding " + queues + " queues", () -> held().size() == queues);
    }

    /** The broker's word, not the consumer's own memory of it. */
    Map<Integer, Long> committed(String topic) throws Exception {
        var store = new RemoteBrokerOffsetStore(
            consumer.getDefaultMQPushConsumerImpl().getmQClientFactory(), consumer.getConsumerGroup());
        Map<Integer, Long> offsets = new HashMap<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            offsets.put(queue.getQueueId(), store.readOffset(queue, ReadOffsetType.READ_FROM_STORE));
        }
        return offsets;
    }

    Map<Integer, Long> ends(String topic) throws Exception {
        Map<Integer, Long> ends = new HashMap<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            ends.put(queue.getQueueId(), consumer.maxOffset(queue));
        }
        return ends;
    }

    /** Once everything is committed no second copy can be on its way. */
    void untilCommitted(String topic) throws Exception {
        Map<Integer, Long> ends = ends(topic);
        row.until("commit of " + topic + " at " + ends, () -> {
            // The client's timer first rings after 10 s.
            row.persist();
            Map<Integer, Long> committed = committed(topic);
            committed.replaceAll((queue, offset) -> Math.max(offset, 0));
            return committed.equals(ends);
        });
        row.write("committed", "group", consumer.getConsumerGroup(), "topic", topic, "offsets", ends);
    }

    /** Wait until the group has read some queues as far as they go now, while others may still be written to. */
    void untilRead(String topic, Predicate<MessageQueue> chosen) throws Exception {
        var store = new RemoteBrokerOffsetStore(
            consumer.getDefaultMQPushConsumerImpl().getmQClientFactory(), consumer.getConsumerGroup());
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            if (chosen.test(queue)) {
                long end = consumer.maxOffset(queue);
                row.until(queue + " read up to " + end, () -> {
                    row.persist();
                    return store.readOffset(queue, ReadOffsetType.READ_FROM_STORE) >= end;
                });
            }
        }
    }
}
