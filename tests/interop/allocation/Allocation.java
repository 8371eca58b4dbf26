import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What the client's own strategies make of queues and clients. A line in: {"queues":[[topic,broker,id]],
 * "clients":[id]}, in any order. A line out, after "shares ": for each strategy what each client gets, as places in
 * the queues that were given; the last of them is for a client that is not there. Sorted first, as clients do.
 */
public final class Allocation {
    private Allocation() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream console = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader cases = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = cases.readLine(); line != null; line = cases.readLine()) {
            JSONObject given = JSON.parseObject(line);
            List<MessageQueue> queues = new ArrayList<>();
            for (Object queue : given.getJSONArray("queues")) {
                JSONArray parts = (JSONArray) queue;
                queues.add(new MessageQueue(parts.getString(0), parts.getString(1), parts.getIntValue(2)));
            }
            console.println("shares " + JSON.toJSONString(shares(queues, given.getList("clients", String.class))));
        }
        System.exit(0);
    }

    private static Map<String, Object> shares(List<MessageQueue> queues, List<String> clients) throws Exception {
        List<MessageQueue> sortedQueues = new ArrayList<>(queues);
        Collections.sort(sortedQueues);
        List<String> sortedClients = new ArrayList<>(clients);
        Collections.sort(sortedClients);
        Map<String, Object> shares = new LinkedHashMap<>();
        for (Map.Entry<String, AllocateMessageQueueStrategy> entry : strategies(sortedQueues).entrySet()) {
            shares.put(entry.getKey(), shares(entry.getValue(), queues, clients, sortedQueues, sortedClients));
        }
        return shares;
    }

    private static Object shares(AllocateMessageQueueStrategy strategy, List<MessageQueue> queues,
        List<String> clients, List<MessageQueue> sortedQueues, List<String> sortedClients) {
        List<List<Integer>> shares = new ArrayList<>();
        List<String> asking = new ArrayList<>(clients);
        asking.add("north@nobody");
        for (String client : asking) {
            List<Integer> share = new ArrayList<>();
            try {
                for (MessageQueue queue : strategy.allocate("group", client, sortedQueues, sortedClients)) {
                    share.add(queues.indexOf(queue));
                }
            } catch (IllegalArgumentException error) {
                return "refused";
            }
            shares.add(share);
        }
        return shares;
    }

    private static Map<String, AllocateMessageQueueStrategy> strategies(List<MessageQueue> queues) {
        Map<String, AllocateMessageQueueStrategy> strategies = new LinkedHashMap<>();
        AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
        List<MessageQueue> everySecond = new ArrayList<>();
        for (int i = 0; i < queues.size(); i += 2) {
            everySecond.add(queues.get(i));
        }
        config.setMessageQueueList(everySecond);
        AllocateMessageQueueByMachineRoom room = new AllocateMessageQueueByMachineRoom();
        room.setConsumeridcs(Set.of("north", "south"));
        List<AllocateMessageQueueStrategy> plain = List.of(new AllocateMessageQueueAveragely(),
            new AllocateMessageQueueAveragelyByCircle(), new AllocateMessageQueueConsistentHash());
        plain.forEach(strategy -> strategies.put(strategy.getName(), strategy));
        strategies.put("CONSISTENT_HASH/1", new AllocateMessageQueueConsistentHash(1));
        strategies.put(config.getName(), config);
        strategies.put(room.getName(), room);
        for (AllocateMessageQueueStrategy inner : plain) {
            AllocateMessageQueueStrategy nearby = new AllocateMachineRoomNearby(inner, new BeforeTheFirstAt());
            strategies.put(nearby.getName(), nearby);
        }
        return strategies;
    }

    /** Brokers and clients are named after the room they stand in. */
    private static final class BeforeTheFirstAt implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName().split("@", 2)[0];
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return clientId.split("@", 2)[0];
        }
    }
}
