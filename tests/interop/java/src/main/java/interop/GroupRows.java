package interop;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Who of a group gets which queues, and what happens when members or queues come and go. */
final class GroupRows {
    private GroupRows() {
    }

    static void register(Map<String, Rows.Story> stories) {
        stories.put("allocation-averagely", row -> allocation(row, new AllocateMessageQueueAveragely()));
        stories.put("allocation-circle", row -> allocation(row, new AllocateMessageQueueAveragelyByCircle()));
        stories.put("allocation-broker", GroupRows::byBroker);
        stories.put("rebalance-join", GroupRows::join);
        stories.put("rebalance-join/victim", GroupRows::victim);
        stories.put("rebalance-storm", GroupRows::storm);
        stories.put("rebalance-unnotified", GroupRows::unnotified);
        stories.put("queue-growth", GroupRows::growth);
        stories.put("queues-change", GroupRows::change);
        stories.put("mixed-java-dies/java", GroupRows::mixed);
        stories.put("mixed-python-dies/java", GroupRows::mixed);
    }

    /** 16 queues, 3 consumers. */
    private static void allocation(Row row, AllocateMessageQueueStrategy strategy) throws Exception {
        row.createTopic(row.topic(), 16);
        Tally tally = new Tally(row.count);
        List<Member> members = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Member member = new Member(row, row.group(), "c" + i, null, strategy).subscribe(row.topic(), "*");
            members.add(member.concurrently(tally).start());
        }
        untilShared(row, members, 6, 5, 5);
        settled(row, members);
        SendRows.async(row, row.producer());
        tally.await();
        members.get(0).untilCommitted(row.topic());
    }

    /** 16 queues, two groups of three that let the broker share them, each by a strategy of its own. */
    private static void byBroker(Row row) throws Exception {
        row.createTopic(row.topic(), 16);
        Map<String, AllocateMessageQueueStrategy> strategies = new TreeMap<>();
        strategies.put("averagely", new AllocateMessageQueueAveragely());
        strategies.put("circle", new AllocateMessageQueueAveragelyByCircle());
        Map<String, List<Member>> groups = new TreeMap<>();
        Tally tally = new Tally(row.count);
        Tally other = new Tally(row.count);
        for (String group : strategies.keySet()) {
            List<Member> members = groups.computeIfAbsent(group, name -> new ArrayList<>());
            for (int i = 0; i < 3; i++) {
                String name = group + i;
                Member member = new Member(row, row.group(group), name, new Capture(row, name, true, false),
                    strategies.get(group)).subscribe(row.topic(), "*").sharedByBroker();
                members.add(member.concurrently(members == groups.get("circle") ? other : tally).start());
            }
        }
        for (List<Member> members : groups.values()) {
            untilShared(row, members, 6, 5, 5);
            settled(row, members);
        }
        SendRows.async(row, row.producer());
        tally.await();
        other.await();
        for (List<Member> members : groups.values()) {
            members.get(0).untilCommitted(row.topic());
            members.remove(2).close();
            untilShared(row, members, 8, 8);
            settled(row, members);
        }
    }

    /** At one moment: while somebody comes or goes, one may hold as many as in the end, too. */
    private static void untilShared(Row row, List<Member> members, int... sizes) throws Exception {
        row.until("shares of " + Arrays.toString(sizes), () -> {
            Set<Integer> held = new TreeSet<>();
            boolean shared = true;
            for (int i = 0; i < sizes.length; i++) {
                Set<Integer> share = members.get(i).held();
                shared &= share.size() == sizes[i];
                held.addAll(share);
            }
            return shared && held.size() == Arrays.stream(sizes).sum();
        });
    }

    private static Member joining(Row row, Tally tally, String name) throws Exception {
        Member member = new Member(row, row.group(), name, new Capture(row, name, true, false),
            new AllocateMessageQueueAveragely());
        return member.subscribe(row.topic(), "*").concurrently(tally).start();
    }

    /** Sends at a steady pace until told to stop, so that the group changes under load. */
    private static final class Load implements AutoCloseable {
        private final Thread thread;
        private volatile boolean on = true;
        private final DefaultMQProducer producer;
        private final String topic;
        volatile int sent;
        volatile String lastBroker = "";

        Load(Row row, int pause) throws Exception {
            this(row, pause, 30_000);
        }

        Load(Row row, int pause, int routeMillis) throws Exception {
            producer = row.producer("producer", null, routeMillis);
            topic = row.topic();
            thread = new Thread(() -> {
                try {
                    // All the row promises, and on from there while its story lasts.
                    while (on || sent < row.count) {
                        SendResult result = producer.send(Content.message(topic, sent));
                        row.sent(sent, result);
                        lastBroker = result.getMessageQueue().getBrokerName();
                        sent++;
                        if (on) {
                            TimeUnit.MILLISECONDS.sleep(pause);
                        }
                    }
                } catch (Exception error) {
                    row.failed(sent, error);
                }
            }, "load-" + row.name);
            thread.start();
        }

        /** How many queues it writes to, as far as it knows. */
        int queues() {
            return producer.getDefaultMQProducerImpl().getTopicPublishInfoTable().get(topic).getMessageQueueList().size();
        }

        @Override
        public void close() throws InterruptedException {
            on = false;
            thread.join();
        }
    }

    /** 5 queues: one member, two, six of which one is idle, and five again when one is killed. */
    private static void join(Row row) throws Exception {
        row.createTopic(row.topic(), 5);
        Tally tally = new Tally(Integer.MAX_VALUE);
        Load load = row.closing(new Load(row, 10));
        Map<String, Member> members = new TreeMap<>();
        members.put("m0", joining(row, tally, "m0"));
        members.get("m0").untilHolding(5);
        step(row, members);
        // A client looks at its group at most once a second.
        Thread.sleep(1200);
        members.put("m1", joining(row, tally, "m1"));
        members.get("m1").untilHolding(2);
        members.get("m0").untilHolding(3);
        step(row, members);
        // So long it is watched what becomes of the queues that were kept.
        Thread.sleep(5000);
        // First in the order of client ids, so that it holds a queue and the last of the others none.
        Child victim = new Child(row, "victim");
        for (String name : new String[] {"m2", "m3", "m4"}) {
            members.put(name, joining(row, tally, name));
        }
        for (String name : members.keySet()) {
            members.get(name).untilHolding(name.equals("m4") ? 0 : 1);
        }
        row.until("word of all six", () -> members.get("m4").consumer.getDefaultMQPushConsumerImpl()
            .getRebalanceImpl().getmQClientFactory().findConsumerIdList(row.topic(), row.group()).size() == 6);
        for (String name : members.keySet()) {
            members.get(name).untilHolding(name.equals("m4") ? 0 : 1);
        }
        row.until("four queues in five hands", () -> held(members).equals(Set.of(1, 2, 3, 4)));
        row.until("queue of the victim", () -> victim.wrote("\"queues\":[0]"));
        step(row, members);
        row.write("killing");
        victim.kill();
        for (Member member : members.values()) {
            member.untilHolding(1);
        }
        row.until("five queues in five hands", () -> held(members).size() == 5);
        step(row, members);
        load.close();
        row.write("load", "sent", load.sent);
        members.get("m0").untilCommitted(row.topic());
    }

    private static void settled(Row row, List<Member> members) {
        Map<String, Object> held = new TreeMap<>();
        members.forEach(member -> held.put(member.name, member.held()));
        row.write("settled", "held", held);
    }

    private static Set<Integer> held(Map<String, Member> members) {
        Set<Integer> held = new TreeSet<>();
        members.values().forEach(member -> held.addAll(member.held()));
        return held;
    }

    private static void step(Row row, Map<String, Member> members) {
        Map<String, Object> held = new TreeMap<>();
        members.forEach((name, member) -> held.put(name, member.held()));
        row.write("step", "held", held);
    }

    private static void victim(Row row) throws Exception {
        joining(row, new Tally(Integer.MAX_VALUE), "a-victim");
        Thread.sleep(Long.MAX_VALUE);
    }

    /** The Java half of a group; who started it has the other half and tells the story. */
    private static void mixed(Row row) throws Exception {
        new Member(row, row.group(), "java").subscribe(row.topic(), "*").concurrently(new Tally(Integer.MAX_VALUE)).start();
        Thread.sleep(Long.MAX_VALUE);
    }

    /** Orderly members come and go in turn: no queue is ever in two hands. */
    private static void storm(Row row) throws Exception {
        row.createTopic(row.topic(), 8);
        Load load = null;
        Tally tally = new Tally(Integer.MAX_VALUE);
        Member[] members = new Member[4];
        for (int step = 0; step < 10; step++) {
            int place = step % members.length;
            if (members[place] != null) {
                members[place].close();
            }
            Member member = new Member(row, row.group(), "c" + step).subscribe(row.topic(), "*");
            member.orderly(tally, message -> {
                Thread.sleep(2);
                row.write("handled", "consumer", member.name, "queueId", message.getQueueId(), "queueOffset",
                    message.getQueueOffset());
                return true;
            });
            members[place] = member.start();
            if (load == null) {
                member.untilHolding(8);
                load = row.closing(new Load(row, 10));
            }
            // Longer than 4.9.8 keeps a queue locked that it gives up with messages in hand (see java_client.py).
            Thread.sleep(1200);
        }
        load.close();
        int sent = load.sent;
        row.write("load", "sent", sent);
        row.until("all of " + sent, () -> tally.unique() >= sent);
        members[1].untilCommitted(row.topic());
    }

    /** A member that no notification reaches finds out by itself. */
    private static void unnotified(Row row) throws Exception {
        row.createTopic(row.topic(), 8);
        Tally tally = new Tally(row.count);
        Member[] members = new Member[2];
        for (int i = 0; i < 2; i++) {
            Member member = new Member(row, row.group(), "c" + i, new Capture(row, "c" + i, i == 1, true),
                new AllocateMessageQueueAveragely());
            members[i] = member.subscribe(row.topic(), "*").concurrently(tally).start();
            members[i].untilHolding(i == 0 ? 8 : 4);
        }
        members[0].untilHolding(4);
        settled(row, List.of(members));
        SendRows.async(row, row.producer());
        tally.await();
        members[0].untilCommitted(row.topic());
    }

    /** 8 queues become 32 while messages flow; both sides take the new ones up. */
    private static void growth(Row row) throws Exception {
        row.createTopic(row.topic(), 8);
        Tally tally = new Tally(Integer.MAX_VALUE);
        Member[] members = new Member[2];
        for (int i = 0; i < 2; i++) {
            members[i] = new Member(row, row.group(), "c" + i).subscribe(row.topic(), "*").concurrently(tally);
            members[i].consumer.setPollNameServerInterval(1000);
            members[i].start();
        }
        members[0].untilHolding(4);
        members[1].untilHolding(4);
        Load load = row.closing(new Load(row, 10));
        row.createTopic(row.topic(), 32);
        row.write("grown");
        for (Member member : members) {
            member.untilHolding(16);
        }
        row.write("taken");
        row.until("sends to every queue", () -> members[0].ends(row.topic()).values().stream().allMatch(n -> n > 0));
        load.close();
        row.write("load", "sent", load.sent);
        row.until("all of " + load.sent, () -> tally.unique() >= load.sent);
        members[0].untilCommitted(row.topic());
    }

    /** A second broker comes, is cut off, comes again, is upgraded, goes; queues are added and taken away. */
    private static void change(Row row) throws Exception {
        row.createTopic(row.topic(), 4);
        Tally tally = new Tally(Integer.MAX_VALUE);
        List<Member> members = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            Member member = new Member(row, row.group(), "c" + i).subscribe(row.topic(), "*").concurrently(tally);
            member.consumer.setPollNameServerInterval(1000);
            members.add(member.start());
        }
        Load load = row.closing(new Load(row, 10, 1000));
        taken(row, members, "start", 4, 0);
        DefaultMQAdminExt admin = row.admin();
        row.closing(admin::shutdown);
        Rows.broker(row, "other-up");
        String[] addresses = new String[2];
        row.until("second broker", () -> {
            var brokers = admin.examineBrokerClusterInfo().getBrokerAddrTable();
            addresses[0] = brokers.get("broker-a").selectBrokerAddr();
            addresses[1] = brokers.get("broker-b").selectBrokerAddr();
            return true;
        });
        changing(row, "broker added");
        queues(admin, addresses[1], row.topic(), 4, 4);
        taken(row, members, "broker added", 4, 4);
        sentTo(row, load, "broker-b");

        changing(row, "queues added");
        queues(admin, addresses[0], row.topic(), 6, 6);
        taken(row, members, "queues added", 6, 4);

        // First nothing is written to them any more, then, when they are read to the end, they go.
        queues(admin, addresses[0], row.topic(), 6, 4);
        untilWriting(row, load, 8);
        members.get(0).untilRead(row.topic(),
            queue -> queue.getBrokerName().equals("broker-a") && queue.getQueueId() >= 4);
        changing(row, "queues taken away");
        queues(admin, addresses[0], row.topic(), 4, 4);
        taken(row, members, "queues taken away", 4, 4);

        changing(row, "cut off");
        Rows.broker(row, "other-cut");
        taken(row, members, "cut off", 4, 0);
        changing(row, "known again");
        taken(row, members, "known again", 4, 4);

        changing(row, "down for an upgrade");
        Rows.broker(row, "other-down");
        taken(row, members, "down for an upgrade", 4, 0);
        changing(row, "upgraded");
        Rows.broker(row, "other-up");
        taken(row, members, "upgraded", 4, 4);
        sentTo(row, load, "broker-b");

        admin.wipeWritePermOfBroker(row.namesrv, "broker-b");
        untilWriting(row, load, 4);
        members.get(0).untilRead(row.topic(), queue -> queue.getBrokerName().equals("broker-b"));
        changing(row, "broker removed");
        Rows.broker(row, "other-down");
        taken(row, members, "broker removed", 4, 0);
        load.close();
        row.write("load", "sent", load.sent);
        row.until("all of " + load.sent, () -> tally.unique() >= load.sent);
        members.get(0).untilCommitted(row.topic());
    }

    private static void changing(Row row, String what) {
        row.write("changing", "what", what);
    }

    /** Wait until the members hold so many queues of each broker, none of them twice. */
    private static void taken(Row row, List<Member> members, String what, int a, int b) throws Exception {
        Set<String> wanted = new TreeSet<>();
        for (int i = 0; i < Math.max(a, b); i++) {
            if (i < a) {
                wanted.add("broker-a/" + i);
            }
            if (i < b) {
                wanted.add("broker-b/" + i);
            }
        }
        row.until("queues taken: " + what, () -> {
            List<String> held = new ArrayList<>();
            members.forEach(member -> held.addAll(member.places()));
            return held.size() == wanted.size() && wanted.equals(new TreeSet<>(held))
                && members.stream().allMatch(member -> member.places().size() == wanted.size() / members.size());
        });
        row.write("taken", "what", what, "queues", wanted);
    }

    private static void queues(DefaultMQAdminExt admin, String address, String topic, int read, int write)
        throws Exception {
        TopicConfig config = new TopicConfig(topic);
        config.setReadQueueNums(read);
        config.setWriteQueueNums(write);
        admin.createAndUpdateTopicConfig(address, config);
    }

    /** Wait until messages go to so many queues, and the last that may have gone to another is stored. */
    private static void untilWriting(Row row, Load load, int queues) throws Exception {
        row.until("writing to " + queues + " queues", () -> load.queues() == queues);
        int before = load.sent;
        row.until("another send", () -> load.sent > before + 1);
    }

    private static void sentTo(Row row, Load load, String broker) throws Exception {
        int before = load.sent;
        row.until("sends to " + broker, () -> load.sent > before && load.lastBroker.equals(broker));
    }
}
