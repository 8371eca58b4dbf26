package interop;

import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Sends numbered messages and writes the ledger of what was acknowledged. */
final class Send {
    private static final int CALLBACKS_TIMEOUT_S = 60;

    private final AtomicInteger acknowledged = new AtomicInteger();
    private final AtomicInteger failed = new AtomicInteger();

    private Send() {
    }

    static void run(String namesrv, String topic, int count, String mode, String group, Interop.Options options)
        throws Exception {
        CountDownLatch told = Interop.toldToStop();
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.start();
        Events.write("started", "serialization", RemotingCommand.getSerializeTypeConfigInThisServer().name());

        Send send = new Send();
        int first = options.number("first", 0);
        switch (mode) {
            case "sync":
                send.sync(producer, topic, first, count, options.number("pace", 0), options.number("queue", -1));
                break;
            case "async":
                send.async(producer, topic, first, count, options.number("window", 256));
                break;
            case "oneway":
                send.oneway(producer, topic, first, count);
                break;
            default:
                throw new IllegalArgumentException("mode " + mode);
        }
        Events.write("complete", "acknowledged", send.acknowledged.get(), "failed", send.failed.get());
        if (mode.equals("oneway")) {
            // Closing the connection would throw away what is still on its way: the parent says when all is stored.
            told.await();
        }
        producer.shutdown();
        Events.write("ended");
    }

    private void sync(DefaultMQProducer producer, String topic, int first, int count, int paceMs, int queue)
        throws InterruptedException {
        List<MessageQueue> queues = queue < 0 ? Collections.emptyList() : queuesOf(producer, topic, queue);
        for (int index = first; index < first + count; index++) {
            Message message = Content.message(topic, index);
            try {
                sent(index, queue < 0 ? producer.send(message) : producer.send(message, queues.get(0)));
            } catch (Exception error) {
                failed(index, error);
            }
            if (paceMs > 0) {
                Thread.sleep(paceMs);
            }
        }
    }

    private static List<MessageQueue> queuesOf(DefaultMQProducer producer, String topic, int queue) {
        try {
            for (MessageQueue candidate : producer.fetchPublishMessageQueues(topic)) {
                if (candidate.getQueueId() == queue) {
                    return Collections.singletonList(candidate);
                }
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        throw new IllegalArgumentException("topic " + topic + " has no queue " + queue);
    }

    private void async(DefaultMQProducer producer, String topic, int first, int count, int window)
        throws InterruptedException {
        Semaphore room = new Semaphore(window);
        for (int index = first; index < first + count; index++) {
            room.acquire();
            int number = index;
            try {
                producer.send(Content.message(topic, index), new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        sent(number, result);
                        room.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        failed(number, error);
                        room.release();
                    }
                });
            } catch (Exception error) {
                failed(number, error);
                room.release();
            }
        }
        if (!room.tryAcquire(window, CALLBACKS_TIMEOUT_S, TimeUnit.SECONDS)) {
            Events.write("error", "error", "callbacks missing: " + (window - room.availablePermits()));
        }
    }

    private void oneway(DefaultMQProducer producer, String topic, int first, int count) {
        for (int index = first; index < first + count; index++) {
            try {
                producer.sendOneway(Content.message(topic, index));
            } catch (Exception error) {
                failed(index, error);
            }
        }
    }

    private void sent(int index, SendResult result) {
        acknowledged.incrementAndGet();
        Events.write("sent", "index", index, "status", result.getSendStatus(), "msgId", result.getMsgId(),
            "offsetMsgId", result.getOffsetMsgId(), "queueId", result.getMessageQueue().getQueueId(),
            "queueOffset", result.getQueueOffset());
    }

    private void failed(int index, Throwable error) {
        failed.incrementAndGet();
        Events.write("failed", "index", index, "error", error.toString());
    }
}
