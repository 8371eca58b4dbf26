package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Small stories with the client as it comes, nothing set that need not be: what it asks for is compared with what
 * our own client asks for (plainrows.py tells the same). Topics and what lies in them are there before.
 */
final class PlainRows {
    /** A client first tells who it is a second after its start. */
    private static final int HEARTBEAT_DUE_MS = 1500;

    private PlainRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("plain-send", PlainRows::send);
        stories.put("plain-push", PlainRows::push);
        stories.put("plain-orderly", PlainRows::orderly);
        stories.put("plain-lite", PlainRows::lite);
    }

    private static <T extends ClientConfig> T named(Row row, T client) {
        client.setNamesrvAddr(row.namesrv);
        client.setInstanceName(row.instance("plain"));
        // Patience, of which the wire shows nothing.
        client.setMqClientApiTimeout(Row.ANSWER_MS);
        return client;
    }

    private static Message message(Row row, int index) {
        return new Message(row.topic(), "a", "key-" + index, ("body " + index).getBytes(StandardCharsets.UTF_8));
    }

    private static void send(Row row) throws Exception {
        DefaultMQProducer producer = named(row, new DefaultMQProducer(row.group()));
        producer.setSendMsgTimeout(Row.ANSWER_MS);
        producer.start();
        for (int index = 0; index < row.count; index++) {
            producer.send(message(row, index));
        }
        Thread.sleep(HEARTBEAT_DUE_MS);
        producer.sendOneway(message(row, row.count));
        CountDownLatch later = new CountDownLatch(1);
        producer.send(message(row, row.count + 1), new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                later.countDown();
            }

            @Override
            public void onException(Throwable error) {
                row.failed(0, error);
                later.countDown();
            }
        });
        later.await(Row.WAIT_S, TimeUnit.SECONDS);
        List<Message> batch = new ArrayList<>();
        for (int index = 0; index < row.count; index++) {
            batch.add(message(row, index));
        }
        producer.send(batch);
        producer.shutdown();
    }

    /** The first message fails once. */
    private static void push(Row row) throws Exception {
        DefaultMQPushConsumer consumer = named(row, new DefaultMQPushConsumer(row.group()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(row.topic(), "a || b");
        CountDownLatch handled = new CountDownLatch(row.count);
        Set<String> failed = ConcurrentHashMap.newKeySet();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (message.getKeys().equals("key-0") && failed.add("key-0")) {
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
                handled.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        handled.await(Row.WAIT_S, TimeUnit.SECONDS);
        consumer.shutdown();
    }

    private static void orderly(Row row) throws Exception {
        DefaultMQPushConsumer consumer = named(row, new DefaultMQPushConsumer(row.group()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(row.topic(), "*");
        CountDownLatch handled = new CountDownLatch(row.count);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(message -> handled.countDown());
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        handled.await(Row.WAIT_S, TimeUnit.SECONDS);
        consumer.shutdown();
    }

    private static void lite(Row row) throws Exception {
        DefaultLitePullConsumer consumer = named(row, new DefaultLitePullConsumer(row.group()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(row.topic(), "*");
        consumer.start();
        int polled = 0;
        while (polled < row.count) {
            polled += consumer.poll().size();
        }
        consumer.commitSync();
        for (MessageQueue queue : Row.ordered(consumer.fetchMessageQueues(row.topic()))) {
            row.write("committed", "queueId", queue.getQueueId(), "offset", consumer.committed(queue));
        }
        consumer.shutdown();
    }
}
