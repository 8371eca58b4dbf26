package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Runs rows in one process, several at a time, and writes what happened as JSON lines; the judging is done
 * by tests/interop. Rows marked alone, which restart the broker, follow all others one by one.
 *
 * <pre>
 * rows LABEL NAMESRV AT_A_TIME ROW=COUNT[/alone|/PART]...
 * </pre>
 */
public final class Rows {
    private static final Map<String, Story> STORIES = new LinkedHashMap<>();
    private static final Map<String, Semaphore> DONE = new ConcurrentHashMap<>();

    /** What a row does. */
    interface Story {
        void run(Row row) throws Exception;
    }

    static {
        SendRows.register(STORIES);
        FilterRows.register(STORIES);
        ConsumeRows.register(STORIES);
        RetryRows.register(STORIES);
        TransactionRows.register(STORIES);
        TimerRows.register(STORIES);
        GroupRows.register(STORIES);
        OffsetRows.register(STORIES);
        QueryRows.register(STORIES);
        AskedRows.register(STORIES);
        PlainRows.register(STORIES);
        RequestRows.register(STORIES);
        TraceRows.register(STORIES);
        FilterServerRows.register(STORIES);
    }

    private Rows() {
    }

    static void run(String label, String namesrv, int atATime, String[] wanted) throws Exception {
        listen();
        Events.write("begin", "serialization", RemotingCommand.getSerializeTypeConfigInThisServer().name());
        List<Row> together = new ArrayList<>();
        List<Row> alone = new ArrayList<>();
        for (String entry : wanted) {
            String[] parts = entry.split("[=/]");
            Row row = new Row(label, parts[0], namesrv, Integer.parseInt(parts[1]));
            if (parts.length > 2 && !parts[2].equals("alone")) {
                // We are a child of the row, and no more than a part of it.
                STORIES.get(parts[0] + "/" + parts[2]).run(row);
                return;
            }
            (parts.length > 2 ? alone : together).add(row);
        }
        CountDownLatch left = new CountDownLatch(together.size());
        ExecutorService threads = Executors.newFixedThreadPool(atATime);
        for (Row row : together) {
            threads.execute(() -> {
                tell(row);
                left.countDown();
            });
        }
        left.await();
        for (Row row : alone) {
            tell(row);
        }
        Events.write("finished");
    }

    private static void tell(Row row) {
        row.write("row-begin", "count", row.count);
        try (row) {
            Story story = STORIES.get(row.name);
            if (story == null) {
                throw new IllegalArgumentException("no such row; known are " + STORIES.keySet());
            }
            story.run(row);
            row.write("row-told");
        } catch (Throwable error) {
            StringWriter trace = new StringWriter();
            error.printStackTrace(new PrintWriter(trace));
            row.write("row-failed", "error", trace);
        }
        row.write("row-end");
    }

    /** Ask the parent to kill the broker ("down") or to start it again ("up"), and wait until that is done. */
    static void broker(Row row, String state) throws InterruptedException {
        wish(row, state, "", "", 0);
    }

    /** Ask the parent to look at the broker's file until a group's offsets of a topic have this sum. */
    static void untilWritten(Row row, String topic, String group, long sum) throws InterruptedException {
        wish(row, "written", topic, group, sum);
    }

    private static void wish(Row row, String state, String topic, String group, long sum) throws InterruptedException {
        Semaphore done = DONE.computeIfAbsent(row.name, name -> new Semaphore(0));
        Events.write("broker-wanted", "row", row.name, "state", state, "topic", topic, "group", group, "sum", sum);
        if (!done.tryAcquire(Row.WAIT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("nobody saw to it that the broker is " + state);
        }
    }

    /** The parent writes the name of a row whose wish it fulfilled; when it goes away, so do we. */
    private static void listen() {
        Thread listener = new Thread(() -> {
            try (BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
                for (String line = input.readLine(); line != null; line = input.readLine()) {
                    DONE.computeIfAbsent(line, name -> new Semaphore(0)).release();
                }
            } catch (IOException closed) {
                // As good as the end of the input.
            }
            Runtime.getRuntime().halt(3);
        }, "parent");
        listener.setDaemon(true);
        listener.start();
    }
}
