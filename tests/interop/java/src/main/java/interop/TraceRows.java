package interop;

import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** A producer and a consumer that tell of their messages. */
final class TraceRows {
    private TraceRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("trace-java/java498", TraceRows::traced);
        stories.put("trace-java/java550", TraceRows::traced);
    }

    private static void traced(Row row) throws Exception {
        String version = row.name;
        DefaultMQProducer producer =
            row.named(new DefaultMQProducer(row.group("producer"), null, true, null), version + "producer");
        producer.setSendMsgTimeout(10_000);
        producer.start();
        for (int index = 0; index < row.count; index++) {
            row.sent(index, producer.send(Content.message(row.topic(), index)));
        }
        DefaultMQPushConsumer consumer = row.named(new DefaultMQPushConsumer(row.group("consumer"), null,
            new AllocateMessageQueueAveragely(), true, null), version + "consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(row.topic(), "*");
        Tally tally = new Tally(row.count);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(tally::count);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        tally.await();
        // Their traces leave within seconds while they live; at a shutdown those that take longer are lost.
        row.write("over", "version", version);
        Thread.sleep(Long.MAX_VALUE);
    }
}
