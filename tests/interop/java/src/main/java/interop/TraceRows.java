package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.trace.TraceView;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** A producer and a consumer that tell of their messages; and an administrator who reads what was told. */
final class TraceRows {
    private static final String SYSTEM_TOPIC = "RMQ_SYS_TRACE_TOPIC";
    /** Sent; begun and done. */
    private static final int ENTRIES = 3;
    private static final int TRACES_MAX = 64;

    private TraceRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("trace", TraceRows::both);
        for (String version : List.of("java498", "java550")) {
            stories.put("trace-java/" + version, row -> {
                traced(row, SYSTEM_TOPIC);
                // Their traces leave within seconds while they live; at a shutdown those that take longer are lost.
                row.write("over", "version", version);
                Thread.sleep(Long.MAX_VALUE);
            });
            stories.put("trace-python/" + version, row -> {
                read(row, version, SYSTEM_TOPIC, found(row));
                row.write("over", "version", version);
            });
        }
    }

    private static void both(Row row) throws Exception {
        row.createTopic(row.topic(), 2);
        // A topic of its own, and one queue: whoever watches the wire tells whose traces are asked for.
        row.createTopic(row.topic("told"), 1);
        read(row, "self", row.topic("told"), traced(row, row.topic("told")));
    }

    /** The ids of the messages, by their numbers. */
    private static Map<Integer, String> traced(Row row, String traces) throws Exception {
        DefaultMQProducer producer =
            row.named(new DefaultMQProducer(row.group("producer"), null, true, traces), "producer");
        producer.setSendMsgTimeout(10_000);
        producer.start();
        row.closing(producer::shutdown);
        Map<Integer, String> ids = new TreeMap<>();
        for (int index = 0; index < row.count; index++) {
            var result = producer.send(Content.message(row.topic(), index));
            ids.put(index, result.getMsgId());
            row.sent(index, result);
        }
        DefaultMQPushConsumer consumer = row.named(new DefaultMQPushConsumer(row.group("consumer"), null,
            new AllocateMessageQueueAveragely(), true, traces), "consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(row.topic(), "*");
        Tally tally = new Tally(row.count);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(tally::count);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        row.closing(consumer::shutdown);
        tally.await();
        return ids;
    }

    /** Those with a key, looked for by it. */
    private static Map<Integer, String> found(Row row) throws Exception {
        DefaultMQAdminExt admin = row.admin();
        Map<Integer, String> ids = new TreeMap<>();
        for (int index = 0; index < row.count; index++) {
            if (Content.message(row.topic(), index).getKeys() != null) {
                ids.put(index, admin.queryMessage(row.topic(), "key-" + index, 1, 0, Long.MAX_VALUE)
                    .getMessageList().get(0).getMsgId());
            }
        }
        admin.shutdown();
        return ids;
    }

    private static void read(Row row, String part, String traces, Map<Integer, String> ids) throws Exception {
        DefaultMQAdminExt admin = row.admin();
        row.closing(admin::shutdown);
        for (Map.Entry<Integer, String> one : ids.entrySet()) {
            List<TraceView> told = new ArrayList<>();
            row.until("trace of " + one.getValue(), () -> {
                told.clear();
                for (MessageExt trace : admin.queryMessage(traces, one.getValue(), TRACES_MAX, 0, Long.MAX_VALUE)
                    .getMessageList()) {
                    told.addAll(TraceView.decodeFromTraceTransData(one.getValue(), trace));
                }
                return told.size() >= ENTRIES;
            });
            for (TraceView entry : told) {
                row.write("told", "part", part, "index", one.getKey(), "kind", entry.getMsgType(),
                    "group", entry.getGroupName(), "topic", entry.getTopic(),
                    "is_success", entry.getStatus().equals("success"), "keys", keys(entry));
            }
        }
    }

    /** A message without keys is told of with this word; one that ended is told of without its field. */
    private static List<String> keys(TraceView entry) {
        String keys = entry.getKeys();
        return keys == null || keys.isEmpty() || keys.equals("null") ? List.of() : List.of(keys.split(" "));
    }
}
