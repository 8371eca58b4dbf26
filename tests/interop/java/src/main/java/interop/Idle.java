package interop;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** One message at a time, with a pause: how long from before its send until its listener has it. */
final class Idle {
    private static final int WARM = 2000;
    private static final long PAUSE_MS = 10;
    private static final BlockingQueue<Long> waits = new LinkedBlockingQueue<>();

    public static void main(String[] arguments) throws Exception {
        String nameServers = arguments[0];
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("idle-" + System.nanoTime());
        consumer.setNamesrvAddr(nameServers);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            long sent = Long.parseLong(new String(messages.get(0).getBody(), StandardCharsets.UTF_8));
            waits.offer(now - sent);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer("idle-producer");
        producer.setNamesrvAddr(nameServers);
        producer.start();
        for (int number = 0; number < WARM; number++) { // compiled, and the queues are ours
            one(producer, topic, 200);
        }
        System.out.println("ready");
        long[] found = new long[count];
        for (int number = 0; number < count; number++) {
            Long wait = null;
            while (wait == null) {
                wait = one(producer, topic, 2000);
            }
            found[number] = wait;
            Thread.sleep(PAUSE_MS);
        }
        Arrays.sort(found);
        System.out.printf("{\"count\": %d, \"p50_ms\": %.4f, \"p99_ms\": %.4f}%n",
            count, found[count / 2] / 1e6, found[count * 99 / 100] / 1e6);
        System.exit(0);
    }

    /** Null when it did not arrive in time: the queues are not ours yet. */
    private static Long one(DefaultMQProducer producer, String topic, long patienceMs) throws Exception {
        waits.clear();
        producer.send(new Message(topic, Long.toString(System.nanoTime()).getBytes(StandardCharsets.UTF_8)));
        return waits.poll(patienceMs, TimeUnit.MILLISECONDS);
    }
}
