package interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A consumer at work is asked through its broker how it is, where it is, and to handle messages once more.
 * It has the last message in hand meanwhile.
 */
final class AskedRows {
    private static final int QUEUES = 4;
    /** Handled a second time, one succeeds, one is to come later, one fails; the first has a compressed body. */
    private static final int DONE = 50;
    private static final int LATER = 51;
    private static final int FAILING = 52;

    private AskedRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("asked", AskedRows::both);
        for (String version : List.of("java498", "java550")) {
            stories.put("asked-java/" + version, row -> {
                member(row, row.group(version), version, new Tally(row.count), new CountDownLatch(1));
                Thread.sleep(Long.MAX_VALUE);
            });
            stories.put("asked-by-java/" + version, row -> {
                ask(row, version, row.group(), "consumer");
                row.write("over", "version", version);
            });
        }
    }

    private static void both(Row row) throws Exception {
        row.createTopic(row.topic(), QUEUES);
        SendRows.queue(row, row.producer());
        CountDownLatch release = new CountDownLatch(1);
        Tally all = new Tally(row.count);
        Member member = member(row, row.group(), "consumer", all, release);
        // Asked of itself, not of the broker, so that each request is made once.
        row.until("the last message in hand", () -> {
            long done = 0;
            var told = member.consumer.getDefaultMQPushConsumerImpl().consumerRunningInfo();
            for (var queue : told.getMqTable().entrySet()) {
                done += queue.getKey().getTopic().equals(row.topic()) ? queue.getValue().getCommitOffset() : 0;
            }
            return done == row.count - 1;
        });
        ask(row, "admin", row.group(), "consumer");
        release.countDown();
        all.await();
        member.untilCommitted(row.topic());
    }

    private static Member member(Row row, String group, String name, Tally tally, CountDownLatch release)
        throws Exception {
        Set<Integer> seen = ConcurrentHashMap.newKeySet();
        Member member = new Member(row, group, name).subscribe(row.topic(), "*");
        return member.concurrently(tally, message -> {
            int index = Integer.parseInt(message.getUserProperty(Content.INDEX));
            boolean again = !seen.add(index);
            if (index == row.count - 1) {
                release.await();
            }
            if (again && index == FAILING) {
                // An error, for what a member's handling throws as an exception is made into a verdict.
                throw new AssertionError("no luck");
            }
            return !(again && index == LATER);
        }).start();
    }

    private static void ask(Row row, String asker, String group, String member) throws Exception {
        DefaultMQAdminExt admin = row.admin();
        row.closing(admin::shutdown);
        List<String> clients = new ArrayList<>();
        row.until("the client of " + group, () -> {
            var connections = admin.examineConsumerConnectionInfo(group).getConnectionSet();
            connections.forEach(one -> clients.add(one.getClientId()));
            return !clients.isEmpty();
        });
        String client = clients.get(0);
        running(row, admin, asker, group, member, client);
        for (var held : admin.getConsumeStatus(row.topic(), group, client).entrySet()) {
            Map<Integer, Long> offsets = new TreeMap<>();
            for (Map.Entry<MessageQueue, Long> queue : held.getValue().entrySet()) {
                offsets.put(queue.getKey().getQueueId(), queue.getValue());
            }
            row.write("status", "asker", asker, "member", member, "clientId", held.getKey(), "offsets",
                new ArrayList<>(offsets.values()));
        }
        for (int index : new int[] {DONE, LATER, FAILING}) {
            directly(row, admin, asker, group, member, client, index);
        }
        row.write("absent", "asker", asker, "member", member, "code", codeOf(admin, group, client + "-gone"));
    }

    private static void running(
        Row row, DefaultMQAdminExt admin, String asker, String group, String member, String client) throws Exception {
        var info = admin.getConsumerRunningInfo(group, client, true);
        Map<String, Object> subscriptions = new TreeMap<>();
        for (var one : info.getSubscriptionSet()) {
            subscriptions.put(one.getTopic(), one.getSubString());
        }
        List<Object> queues = new ArrayList<>();
        for (var entry : info.getMqTable().entrySet()) {
            if (entry.getKey().getTopic().equals(row.topic())) {
                var queue = entry.getValue();
                queues.add(List.of(entry.getKey().getQueueId(), queue.getCommitOffset(), queue.getCachedMsgCount(),
                    queue.getCachedMsgMinOffset(), queue.getCachedMsgMaxOffset(), queue.isDroped()));
            }
        }
        List<String> stacks = new ArrayList<>();
        for (String block : info.getJstack().split("\n\n")) {
            if (block.toLowerCase(Locale.ROOT).contains("askedrows")) {
                stacks.add(block);
            }
        }
        row.write("running", "asker", asker, "member", member, "clientId", client, "subscriptions", subscriptions,
            "queues", queues, "properties", new TreeMap<>(info.getProperties()), "stacks", stacks);
    }

    private static void directly(Row row, DefaultMQAdminExt admin, String asker, String group, String member,
        String client, int index) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        row.until("message with the key of " + index, () ->
            found.addAll(admin.queryMessage(row.topic(), "key-" + index, 1, 0, Long.MAX_VALUE).getMessageList()));
        var result = admin.consumeMessageDirectly(group, client, row.topic(), found.get(0).getMsgId());
        row.write("direct", "asker", asker, "member", member, "index", index, "result", result.getConsumeResult(),
            "order", result.isOrder(), "autoCommit", result.isAutoCommit(), "remark", result.getRemark());
    }

    /** What the broker says when there is no such client. */
    private static int codeOf(DefaultMQAdminExt admin, String group, String client) throws Exception {
        try {
            admin.getConsumerRunningInfo(group, client, false);
            return 0;
        } catch (MQClientException refused) {
            return refused.getResponseCode();
        }
    }
}
