package interop;

import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/** Part of a row in a process of its own, so that it can be killed; its events are passed on as they come. */
final class Child implements AutoCloseable {
    private final Process process;
    private final List<String> lines = new CopyOnWriteArrayList<>();

    Child(Row row, String part) throws Exception {
        List<String> command = new ArrayList<>();
        command.add(System.getProperty("java.home") + File.separator + "bin" + File.separator + "java");
        command.addAll(ManagementFactory.getRuntimeMXBean().getInputArguments());
        command.addAll(List.of("-cp", System.getProperty("java.class.path"), "interop.Interop", "rows", row.label,
            row.namesrv, "1", row.name + "=" + row.count + "/" + part));
        process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        Thread relay = new Thread(() -> {
            try (BufferedReader output =
                new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
                for (String line = output.readLine(); line != null; line = output.readLine()) {
                    if (line.startsWith("{\"event\"") && line.contains("\"row\"") && !line.contains("\"row-")) {
                        Events.pass(line);
                        lines.add(line);
                    }
                }
            } catch (java.io.IOException ended) {
                // A killed child writes no more.
            }
        }, "child-of-" + row.name);
        relay.setDaemon(true);
        relay.start();
        row.closing(this);
    }

    /** Whether a line with such a part came. */
    boolean wrote(String part) {
        return lines.stream().anyMatch(line -> line.contains(part));
    }

    /** SIGKILL: the broker learns of it from the closed connections alone. */
    void kill() throws InterruptedException {
        process.destroyForcibly().waitFor();
    }

    @Override
    public void close() throws Exception {
        kill();
    }
}
