package interop;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.LongPredicate;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** How far a group has come, who says so, and how it is put back. */
final class OffsetRows {
    private static final long FIRST = 1001;
    private static final int AFTER = 10;

    private OffsetRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("offset-progress", OffsetRows::progress);
        stories.put("offset-kill", OffsetRows::kill);
        stories.put("offset-kill/victim", OffsetRows::victim);
        stories.put("offset-file", OffsetRows::file);
        stories.put("reset-by-time", OffsetRows::resetByTime);
        stories.put("reset-by-hand", OffsetRows::resetByHand);
        stories.put("order-restarts", OffsetRows::orderRestarts);
    }

    /** A member that does not come to an end with some messages until the latch opens. */
    private static Member stuck(Row row, String name, Tally tally, CountDownLatch release, LongPredicate holds)
        throws Exception {
        Member member = new Member(row, row.group(name), name).subscribe(row.topic(), "*");
        member.consumer.setConsumeThreadMax(AFTER + 2);
        member.consumer.setConsumeThreadMin(AFTER + 2);
        return member.concurrently(tally, message -> {
            if (holds.test(message.getQueueOffset())) {
                release.await();
            }
            return true;
        }).start();
    }

    private static void committed(Row row, Member member, long offset) throws Exception {
        row.until(member.name + " committed at " + offset, () -> member.committed(row.topic()).get(0) == offset);
        // Two rounds of the timer later it must not have moved.
        Thread.sleep(1500);
        row.write("commit", "consumer", member.name, "wanted", offset, "offset", member.committed(row.topic()).get(0));
    }

    /** One queue; the last ten messages have offsets 1001 to 1010. */
    private static void progress(Row row) throws Exception {
        row.createTopic(row.topic(), 1);
        SendRows.sync(row, row.producer());
        CountDownLatch release = new CountDownLatch(1);
        CountDownLatch never = new CountDownLatch(1);
        Tally all = new Tally(row.count);
        Member done = stuck(row, "done", all, never, offset -> false);
        Member eight = stuck(row, "eight", new Tally(row.count - 2), never, offset -> offset > FIRST + 7);
        Tally rest = new Tally(row.count - 1);
        Member first = stuck(row, "first", rest, release, offset -> offset == FIRST);
        all.await();
        committed(row, done, FIRST + AFTER);
        committed(row, eight, FIRST + 8);
        rest.await();
        committed(row, first, FIRST);
        DefaultMQAdminExt admin = row.admin();
        row.closing(admin::shutdown);
        for (int index : new int[] {(int) FIRST - 1, (int) FIRST + 1, (int) FIRST + 9}) {
            tracks(row, admin, index);
        }
        release.countDown();
        committed(row, first, FIRST + AFTER);
        never.countDown();
    }

    /** A message is looked for by topic and key, and of each group it is asked whether it has consumed it. */
    private static void tracks(Row row, DefaultMQAdminExt admin, int index) throws Exception {
        row.until("message with the key of " + index,
            () -> !admin.queryMessage(row.topic(), "key-" + index, 32, 0, Long.MAX_VALUE).getMessageList().isEmpty());
        for (var message : admin.queryMessage(row.topic(), "key-" + index, 32, 0, Long.MAX_VALUE).getMessageList()) {
            Map<String, Object> groups = new TreeMap<>();
            for (var track : admin.messageTrackDetail(message)) {
                groups.put(track.getConsumerGroup(), track.getTrackType());
            }
            row.write("tracks", "index", index, "queueOffset", message.getQueueOffset(), "groups", groups);
        }
    }

    /** The stuck member is killed; its successor gets what no commit covered, and nothing else. */
    private static void kill(Row row) throws Exception {
        row.createTopic(row.topic(), 1);
        SendRows.sync(row, row.producer());
        Child victim = new Child(row, "victim");
        Member watcher = new Member(row, row.group("watcher"), "watcher").subscribe(row.topic(), "*");
        watcher.concurrently(new Tally(1)).start();
        Member reader = new Member(row, row.group(), "successor").subscribe(row.topic(), "*");
        DefaultMQAdminExt admin = row.admin();
        MessageQueue queue = watcher.consumer.fetchSubscribeMessageQueues(row.topic()).iterator().next();
        row.until("commit of the victim at " + FIRST, () -> {
            var stats = admin.examineConsumeStats(row.group(), row.topic());
            return stats.getOffsetTable().get(queue).getConsumerOffset() == FIRST;
        });
        admin.shutdown();
        // The ten behind it were handed to its threads with it; two rounds of its timer move nothing.
        Thread.sleep(1500);
        victim.kill();
        row.write("killed");
        Tally tally = new Tally(AFTER);
        reader.concurrently(tally).start();
        tally.await();
        reader.untilCommitted(row.topic());
    }

    private static void victim(Row row) throws Exception {
        Member member = new Member(row, row.group(), "victim").subscribe(row.topic(), "*");
        member.consumer.setConsumeThreadMax(AFTER + 2);
        member.consumer.setConsumeThreadMin(AFTER + 2);
        member.concurrently(new Tally(row.count), message -> {
            if (message.getQueueOffset() == FIRST) {
                Thread.sleep(Long.MAX_VALUE);
            }
            return true;
        }).start();
        Thread.sleep(Long.MAX_VALUE);
    }

    /** With the client's own timer, which first rings after 10 s. */
    private static void file(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        Tally tally = new Tally(row.count);
        Member member = new Member(row, row.group(), "consumer", new Capture(row, "consumer", true, false),
            new AllocateMessageQueueAveragely()).subscribe(row.topic(), "*").concurrently(tally);
        member.consumer.setPersistConsumerOffsetInterval(5000);
        member.start();
        Thread.sleep(10_500);
        SendRows.sync(row, row.producer());
        tally.await();
        Rows.untilWritten(row, row.topic(), row.group(), row.count);
        row.write("written");
    }

    /** A running group is put back to a moment between two halves. */
    private static void resetByTime(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        DefaultMQProducer producer = row.producer();
        SendRows.async(row, producer, row.topic(), 0, row.count / 2);
        Thread.sleep(1100);
        long moment = System.currentTimeMillis();
        Thread.sleep(1100);
        SendRows.async(row, producer, row.topic(), row.count / 2, row.count - row.count / 2);
        Tally tally = new Tally(row.count);
        AtomicInteger later = new AtomicInteger();
        Member member = new Member(row, row.group(), "consumer").subscribe(row.topic(), "*");
        member.concurrently(tally, message -> later.incrementAndGet() > 0).start();
        tally.await();
        member.untilCommitted(row.topic());
        DefaultMQAdminExt admin = row.admin();
        int before = later.get();
        row.write("resetting", "moment", moment);
        Map<MessageQueue, Long> told = admin.resetOffsetByTimestamp(row.topic(), row.group(), moment, true);
        for (Map.Entry<MessageQueue, Long> entry : told.entrySet()) {
            row.write("reset", "queueId", entry.getKey().getQueueId(), "offset", entry.getValue());
        }
        admin.shutdown();
        row.until("second half again", () -> later.get() - before >= row.count - row.count / 2);
        member.untilCommitted(row.topic());
    }

    /** One queue of a group that nobody is in is set by hand; the next member reads on from there. */
    private static void resetByHand(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        SendRows.queue(row, row.producer());
        Tally tally = new Tally(row.count);
        Member first = new Member(row, row.group(), "before").subscribe(row.topic(), "*").concurrently(tally).start();
        tally.await();
        first.untilCommitted(row.topic());
        List<MessageQueue> queues = Row.ordered(first.consumer.fetchSubscribeMessageQueues(row.topic()));
        first.close();
        int each = row.count / queues.size();
        DefaultMQAdminExt admin = row.admin();
        admin.updateConsumeOffset(Row.brokerAddress(admin), row.group(), queues.get(1), each / 2);
        admin.shutdown();
        row.write("set", "queueId", 1, "offset", each / 2);
        Tally again = new Tally(each - each / 2);
        Member second = new Member(row, row.group(), "after").subscribe(row.topic(), "*").concurrently(again).start();
        again.await();
        second.untilCommitted(row.topic());
    }

    /** One queue, one sender, one thread; the broker dies in between. */
    private static void orderRestarts(Row row) throws Exception {
        row.createTopic(row.topic(), 1);
        DefaultMQProducer producer = row.producer();
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(3000);
        Tally tally = new Tally(row.count);
        Member member = new Member(row, row.group(), "consumer").subscribe(row.topic(), "*");
        member.consumer.setConsumeThreadMin(1);
        member.consumer.setConsumeThreadMax(1);
        member.orderly(tally, message -> true).start();
        for (int index = 0; index < row.count; index++) {
            if (index == row.count / 3 || index == row.count * 2 / 3) {
                Thread restarting = new Thread(() -> {
                    try {
                        Rows.broker(row, "down");
                        Rows.broker(row, "up");
                    } catch (InterruptedException stopped) {
                        row.write("error", "error", "restart interrupted");
                    }
                });
                restarting.start();
            }
            for (boolean done = false; !done; ) {
                try {
                    row.sent(index, producer.send(Content.message(row.topic(), index)));
                    done = true;
                } catch (Exception unknown) {
                    row.write("unknown", "index", index, "error", unknown.toString());
                    Thread.sleep(100);
                }
            }
        }
        tally.await();
        member.untilCommitted(row.topic());
    }
}
