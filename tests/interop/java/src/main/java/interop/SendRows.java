package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Every way to send, each read back by a push consumer that starts afterwards. */
final class SendRows {
    private static final int WINDOW = 64;
    private static final int BATCH = 10;
    private static final int QUEUES = 8;
    static final int ORDERS = 100;

    private SendRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("send-sync", row -> sent(row, SendRows::sync));
        stories.put("headers", row -> sent(row, SendRows::sync));
        stories.put("send-async", row -> sent(row, SendRows::async));
        stories.put("send-oneway", row -> sent(row, SendRows::oneway));
        stories.put("send-queue", row -> {
            row.createTopic(row.topic(), QUEUES);
            sent(row, SendRows::queue);
        });
        stories.put("send-selector", row -> {
            row.createTopic(row.topic(), QUEUES);
            sent(row, SendRows::selector);
        });
        stories.put("send-batch", row -> {
            row.createTopic(row.topic(), QUEUES);
            sent(row, SendRows::batch);
        });
    }

    /** Sends all messages of a row. */
    interface Sending {
        void send(Row row, DefaultMQProducer producer) throws Exception;
    }

    private static void sent(Row row, Sending sending) throws Exception {
        boolean capture = row.name.equals("send-oneway") || row.name.equals("send-batch");
        DefaultMQProducer producer = row.producer("producer", new Capture(row, "producer", capture, false));
        sending.send(row, producer);
        // A oneway message may still be on its way: closing the connection would throw it away.
        row.untilStored(producer, row.topic(), row.count);
        Tally tally = new Tally(row.count);
        Member member = new Member(row, row.group(), "consumer").subscribe(row.topic(), "*").concurrently(tally);
        member.start();
        tally.await();
        member.untilCommitted(row.topic());
    }

    static void sync(Row row, DefaultMQProducer producer) throws Exception {
        for (int index = 0; index < row.count; index++) {
            row.sent(index, producer.send(Content.message(row.topic(), index)));
        }
    }

    static void async(Row row, DefaultMQProducer producer) throws Exception {
        async(row, producer, row.topic(), 0, row.count);
    }

    static void async(Row row, DefaultMQProducer producer, String topic, int first, int count) throws Exception {
        Semaphore room = new Semaphore(WINDOW);
        for (int index = first; index < first + count; index++) {
            int number = index;
            room.acquire();
            producer.send(Content.message(topic, index), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    row.sent(number, result);
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    row.failed(number, error);
                    room.release();
                }
            });
        }
        if (!room.tryAcquire(WINDOW, Row.WAIT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("callbacks missing: " + (WINDOW - room.availablePermits()));
        }
    }

    static void oneway(Row row, DefaultMQProducer producer) throws Exception {
        for (int index = 0; index < row.count; index++) {
            producer.sendOneway(Content.message(row.topic(), index));
        }
    }

    static void queue(Row row, DefaultMQProducer producer) throws Exception {
        List<MessageQueue> queues = Row.ordered(producer.fetchPublishMessageQueues(row.topic()));
        for (int index = 0; index < row.count; index++) {
            row.sent(index, producer.send(Content.message(row.topic(), index), queues.get(index % queues.size())));
        }
    }

    static void selector(Row row, DefaultMQProducer producer) throws Exception {
        for (int index = 0; index < row.count; index++) {
            Message message = Content.message(row.topic(), index);
            row.sent(index, producer.send(message, new SelectMessageQueueByHash(), "order-" + index % ORDERS));
        }
    }

    static void batch(Row row, DefaultMQProducer producer) throws Exception {
        for (int first = 0; first < row.count; first += BATCH) {
            List<Message> messages = new ArrayList<>();
            for (int index = first; index < first + BATCH; index++) {
                messages.add(Content.message(row.topic(), index));
            }
            row.sent(first, producer.send(messages));
        }
    }
}
