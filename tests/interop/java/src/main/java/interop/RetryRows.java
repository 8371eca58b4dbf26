package interop;

import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Messages that come later: because their sender asked for it, or because their consumer failed. */
final class RetryRows {
    /** Levels asked for, in turn; the last is above the ladder's end. */
    static final int[] LEVELS = {1, 2, 99};

    private RetryRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("delay", RetryRows::delay);
        stories.put("retry", RetryRows::retry);
        stories.put("dead-letter", RetryRows::deadLetter);
        stories.put("retry-cut", RetryRows::cut);
    }

    private static int index(org.apache.rocketmq.common.message.MessageExt message) {
        return Integer.parseInt(message.getUserProperty(Content.INDEX));
    }

    private static void delay(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        Tally tally = new Tally(row.count);
        Member member = new Member(row, row.group(), "consumer").subscribe(row.topic(), "*").concurrently(tally);
        member.start();
        member.untilHolding(4);
        DefaultMQProducer producer = row.producer();
        for (int index = 0; index < row.count; index++) {
            Message message = Content.message(row.topic(), index);
            message.setDelayTimeLevel(LEVELS[index % LEVELS.length]);
            row.sent(index, producer.send(message));
        }
        tally.await();
        member.untilCommitted(row.topic());
    }

    /**
     * The broker makes a group's retry topic when it first hears of the group; a member that was there before its
     * route waits for the next look at the name server and the next round. So somebody comes before.
     */
    private static void pioneer(Row row) throws Exception {
        Member member = new Member(row, row.group(), "pioneer").subscribe(row.topic(), "*");
        member.concurrently(new Tally(1)).start();
        DefaultMQAdminExt admin = row.admin();
        row.until("route of the retry topic",
            () -> admin.examineTopicRouteInfo("%RETRY%" + row.group()).getQueueDatas().size() == 1);
        admin.shutdown();
        member.close();
    }

    /** Each message fails once. */
    private static void retry(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        pioneer(row);
        SendRows.async(row, row.producer());
        Tally tally = new Tally(row.count);
        Set<Integer> failed = ConcurrentHashMap.newKeySet();
        Member member = new Member(row, row.group(), "consumer").subscribe(row.topic(), "*");
        member.concurrently(tally, message -> !failed.add(index(message)));
        member.start();
        tally.await();
        member.untilCommitted(row.topic());
        member.untilCommitted("%RETRY%" + row.group());
    }

    /** Each message fails until it is dead, is read as a dead letter, and sent again to be handled at last. */
    private static void deadLetter(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        pioneer(row);
        DefaultMQProducer producer = row.producer();
        SendRows.sync(row, producer);
        Tally tally = new Tally(row.count);
        Set<Integer> driven = ConcurrentHashMap.newKeySet();
        Member member = new Member(row, row.group(), "consumer").subscribe(row.topic(), "*");
        member.concurrently(tally, message -> driven.contains(index(message)));
        member.start();
        String dead = "%DLQ%" + row.group();
        DefaultMQAdminExt admin = row.admin();
        row.until("route of " + dead, () -> {
            var queues = admin.examineTopicRouteInfo(dead).getQueueDatas().get(0);
            row.write("dead-route", "read", queues.getReadQueueNums(), "write", queues.getWriteQueueNums(),
                "perm", queues.getPerm());
            return true;
        });
        admin.shutdown();
        Tally buried = new Tally(row.count);
        Member undertaker = new Member(row, row.group("undertaker"), "undertaker").subscribe(dead, "*");
        undertaker.concurrently(buried);
        undertaker.start();
        buried.await();
        row.write("driving");
        for (int index = 0; index < row.count; index++) {
            driven.add(index);
            row.sent(index, producer.send(Content.message(row.topic(), index)));
        }
        tally.await();
        member.untilCommitted(row.topic());
    }

    /** The broker is gone when messages fail: nobody takes them back, so they are handled here once more. */
    private static void cut(Row row) throws Exception {
        row.createTopic(row.topic(), 1);
        SendRows.sync(row, row.producer());
        Tally tally = new Tally(row.count);
        Set<Integer> failed = ConcurrentHashMap.newKeySet();
        CountDownLatch handed = new CountDownLatch(row.count);
        CountDownLatch gone = new CountDownLatch(1);
        Member member = new Member(row, row.group(), "consumer").subscribe(row.topic(), "*");
        member.consumer.setConsumeThreadMax(row.count);
        member.consumer.setConsumeThreadMin(row.count);
        member.concurrently(tally, message -> {
            if (failed.add(index(message))) {
                handed.countDown();
                gone.await();
                return false;
            }
            return true;
        });
        member.start();
        handed.await(Row.WAIT_S, TimeUnit.SECONDS);
        Rows.broker(row, "down");
        row.write("down");
        gone.countDown();
        tally.await();
        row.write("again");
        Rows.broker(row, "up");
        member.untilCommitted(row.topic());
    }
}
