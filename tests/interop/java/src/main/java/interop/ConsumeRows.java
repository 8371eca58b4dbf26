package interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Every way to consume. */
@SuppressWarnings("deprecation")
final class ConsumeRows {
    private static final int QUEUES = 4;
    private static final int POLL_MS = 1000;

    private ConsumeRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("push-pulls", ConsumeRows::pulls);
        stories.put("pull-interval", ConsumeRows::interval);
        stories.put("pull-held", ConsumeRows::held);
        stories.put("push-concurrent", ConsumeRows::concurrent);
        stories.put("push-orderly", ConsumeRows::orderly);
        stories.put("pull", ConsumeRows::pull);
        stories.put("lite-subscribe", ConsumeRows::liteSubscribe);
        stories.put("lite-assign", ConsumeRows::liteAssign);
        stories.put("broadcasting", ConsumeRows::broadcasting);
    }

    private static Member captured(Row row) throws Exception {
        return new Member(row, row.group(), "consumer", new Capture(row, "consumer", true, false),
            new AllocateMessageQueueAveragely());
    }

    private static void pulls(Row row) throws Exception {
        row.createTopic(row.topic(), 1);
        SendRows.async(row, row.producer());
        Tally tally = new Tally(row.count);
        Member member = captured(row).subscribe(row.topic(), "*").concurrently(tally);
        member.consumer.setConsumeMessageBatchMaxSize(32);
        member.start();
        tally.await();
        member.untilCommitted(row.topic());
    }

    private static void interval(Row row) throws Exception {
        row.createTopic(row.topic(), 1);
        SendRows.async(row, row.producer());
        Tally tally = new Tally(row.count);
        Member member = captured(row).subscribe(row.topic(), "*").concurrently(tally);
        member.consumer.setPullInterval(1000);
        member.start();
        tally.await();
        member.untilCommitted(row.topic());
    }

    /** Idle until two pulls in a row were held to their end; then messages come one by one. */
    private static void held(Row row) throws Exception {
        row.createTopic(row.topic(), 1);
        DefaultMQProducer producer = row.producer();
        Tally tally = new Tally(row.count);
        Member member = captured(row).subscribe(row.topic(), "*").concurrently(tally);
        member.start();
        member.untilHolding(1);
        Thread.sleep(43_000);
        for (int index = 0; index < row.count; index++) {
            row.sent(index, producer.send(Content.message(row.topic(), index)));
            Thread.sleep(50);
        }
        tally.await();
    }

    /** Two groups of three. */
    private static void concurrent(Row row) throws Exception {
        row.createTopic(row.topic(), 8);
        Map<String, Tally> tallies = new TreeMap<>();
        List<Member> members = new ArrayList<>();
        for (String group : new String[] {"red", "blue"}) {
            Tally tally = new Tally(row.count);
            tallies.put(group, tally);
            for (int i = 0; i < 3; i++) {
                Member member = new Member(row, row.group(group), group + i);
                members.add(member.subscribe(row.topic(), "*").concurrently(tally).start());
            }
        }
        for (int i = 0; i < members.size(); i++) {
            members.get(i).untilHolding(i % 3 == 2 ? 2 : 3);
        }
        SendRows.async(row, row.producer());
        for (Tally tally : tallies.values()) {
            tally.await();
        }
        members.get(0).untilCommitted(row.topic());
        members.get(3).untilCommitted(row.topic());
    }

    /** Two members; every 97th message fails the first time and holds up what is behind it. */
    private static void orderly(Row row) throws Exception {
        row.createTopic(row.topic(), QUEUES);
        Tally tally = new Tally(row.count);
        Set<Integer> failed = ConcurrentHashMap.newKeySet();
        List<Member> members = new ArrayList<>();
        for (String name : new String[] {"left", "right"}) {
            Member member = new Member(row, row.group(), name).subscribe(row.topic(), "*");
            member.orderly(tally, message -> {
                int index = Integer.parseInt(message.getUserProperty(Content.INDEX));
                boolean done = index % 97 != 0 || !failed.add(index);
                row.write("handled", "consumer", member.name, "index", index, "queueId", message.getQueueId(),
                    "done", done, "thread", Thread.currentThread().getName());
                return done;
            });
            members.add(member.start());
        }
        for (Member member : members) {
            member.untilHolding(QUEUES / 2);
        }
        SendRows.selector(row, row.producer());
        tally.await();
        members.get(0).untilCommitted(row.topic());
    }

    private static void pull(Row row) throws Exception {
        row.createTopic(row.topic(), QUEUES);
        DefaultMQProducer producer = row.producer();
        SendRows.sync(row, producer);
        DefaultMQPullConsumer consumer = row.named(new DefaultMQPullConsumer(row.group()), "consumer");
        consumer.start();
        row.closing(consumer::shutdown);
        MessageQueue first = null;
        for (MessageQueue queue : Row.ordered(consumer.fetchSubscribeMessageQueues(row.topic()))) {
            first = first == null ? queue : first;
            long offset = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (offset < end) {
                offset = pulled(row, queue, offset, consumer.pull(queue, "*", offset, 32));
            }
            pulled(row, queue, end, consumer.pull(queue, "*", end, 32));
            pulled(row, queue, end + 1000, consumer.pull(queue, "*", end + 1000, 32));
            consumer.updateConsumeOffset(queue, offset);
            consumer.getOffsetStore().persist(queue);
            row.until("commit of " + queue, () -> consumer.fetchConsumeOffset(queue, true) == end);
        }
        MessageQueue queue = first;
        long end = consumer.maxOffset(queue);
        CompletableFuture<PullResult> held = CompletableFuture.supplyAsync(() -> {
            try {
                return consumer.pullBlockIfNotFound(queue, "*", end, 32);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        Thread.sleep(300);
        row.write("woken-by", "offset", end);
        row.sent(row.count, producer.send(Content.message(row.topic(), row.count), queue));
        pulled(row, queue, end, held.get(Row.WAIT_S, TimeUnit.SECONDS));
    }

    private static long pulled(Row row, MessageQueue queue, long offset, PullResult result) {
        List<MessageExt> found = result.getMsgFoundList() == null ? List.of() : result.getMsgFoundList();
        row.write("pulled", "queueId", queue.getQueueId(), "offset", offset, "status", result.getPullStatus(),
            "next", result.getNextBeginOffset(), "min", result.getMinOffset(), "max", result.getMaxOffset(),
            "count", found.size());
        for (MessageExt message : found) {
            row.message("consumer", message);
        }
        return result.getNextBeginOffset();
    }

    private static DefaultLitePullConsumer lite(Row row, String name) {
        DefaultLitePullConsumer consumer = row.named(new DefaultLitePullConsumer(row.group()), name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setPullThreadNums(4);
        return consumer;
    }

    /** Read until so many messages came; what follows later belongs to the next reader. */
    private static void poll(Row row, DefaultLitePullConsumer consumer, String name, int wanted) throws Exception {
        Set<String> seen = new HashSet<>();
        row.until(wanted + " polled messages", () -> {
            for (MessageExt message : consumer.poll(POLL_MS)) {
                row.message(name, message);
                seen.add(message.getQueueId() + ":" + message.getQueueOffset());
            }
            return seen.size() >= wanted;
        });
    }

    /** The first reader commits what it polled and leaves; the second goes on from there. */
    private static void liteSubscribe(Row row) throws Exception {
        row.createTopic(row.topic(), QUEUES);
        SendRows.async(row, row.producer());
        int half = row.count / 2;
        DefaultLitePullConsumer first = lite(row, "first");
        first.subscribe(row.topic(), "*");
        first.start();
        poll(row, first, "first", half);
        first.commitSync();
        first.shutdown();
        DefaultLitePullConsumer second = lite(row, "second");
        second.subscribe(row.topic(), "*");
        second.start();
        row.closing(second::shutdown);
        // The first takes whole batches, so it may have gone past the half by less than one.
        poll(row, second, "second", row.count - half - 10);
        for (int empty = 0; empty < 2; ) {
            List<MessageExt> rest = second.poll(POLL_MS);
            rest.forEach(message -> row.message("second", message));
            empty += rest.isEmpty() ? 1 : 0;
        }
        second.commitSync();
        for (MessageQueue queue : Row.ordered(second.fetchMessageQueues(row.topic()))) {
            row.write("commit", "queueId", queue.getQueueId(), "offset", second.committed(queue));
        }
    }

    /**
     * Every seek comes while the pulls of all queues are held. It interrupts the thread that pulls its queue, and
     * the client forgets the seek, or loses messages of other queues or its connection, when that thread is just
     * at something else. Seen with Apache's own broker.
     */
    private static void liteAssign(Row row) throws Exception {
        row.createTopic(row.topic(), QUEUES);
        SendRows.queue(row, row.producer());
        DefaultLitePullConsumer consumer = lite(row, "consumer");
        consumer.start();
        row.closing(consumer::shutdown);
        List<MessageQueue> queues = Row.ordered(consumer.fetchMessageQueues(row.topic()));
        int each = row.count / QUEUES;
        consumer.assign(queues);
        poll(row, consumer, "all", row.count);
        untilHeld(row);
        consumer.seek(queues.get(0), each / 2);
        poll(row, consumer, "half", each - each / 2);
        untilHeld(row);
        consumer.seekToBegin(queues.get(0));
        poll(row, consumer, "begin", each);
        untilHeld(row);
        consumer.seekToEnd(queues.get(0));
        untilHeld(row);
        List<MessageExt> rest = consumer.poll(POLL_MS);
        rest.forEach(message -> row.message("end", message));
        row.write("searched", "offset", consumer.offsetForTimestamp(queues.get(1), 0L));
    }

    /** After all there was has been polled: each pulling thread waits for the reply to a pull of what is not there. */
    private static void untilHeld(Row row) throws Exception {
        row.until(QUEUES + " pulls held", () -> Thread.getAllStackTraces().entrySet().stream()
            .filter(entry -> entry.getKey().getName().startsWith("PullMsgThread-" + row.group()))
            .filter(entry -> entry.getKey().getState() == Thread.State.TIMED_WAITING && !entry.getKey().isInterrupted())
            .filter(entry -> Arrays.stream(entry.getValue())
                .anyMatch(frame -> frame.getMethodName().equals("invokeSyncImpl")))
            .count() == QUEUES);
    }

    private static void broadcasting(Row row) throws Exception {
        row.createTopic(row.topic(), QUEUES);
        List<Member> members = new ArrayList<>();
        List<Tally> tallies = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Tally tally = new Tally(row.count);
            tallies.add(tally);
            Member member = new Member(row, row.group(), "c" + i).broadcasting().subscribe(row.topic(), "*");
            members.add(member.concurrently(tally).start());
        }
        for (Member member : members) {
            member.untilHolding(QUEUES);
        }
        SendRows.async(row, row.producer());
        for (Tally tally : tallies) {
            tally.await();
        }
    }
}
