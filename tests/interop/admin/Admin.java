import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs mqadmin's commands one after the other in one process, which spares each the start of a JVM.
 * A line in: the words of a command, separated by tabs. A line out: what it wrote, in base 64, after "done ".
 */
public final class Admin {
    private Admin() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream console = System.out;
        hastenShutdowns(Thread.currentThread());
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ByteArrayOutputStream written = new ByteArrayOutputStream();
            PrintStream capture = new PrintStream(written, true, StandardCharsets.UTF_8);
            System.setOut(capture);
            System.setErr(capture);
            try {
                Fresh.start();
                MQAdminStartup.main0(line.split("\t", -1), null);
            } catch (Throwable thrown) {
                thrown.printStackTrace(capture);
            }
            capture.flush();
            console.println("done " + Base64.getEncoder().encodeToString(written.toByteArray()));
            console.flush();
        }
        System.exit(0);
    }

    /**
     * A client that is shut down waits for a thread which looks up from an empty queue every three seconds;
     * woken, it ends at once.
     */
    private static void hastenShutdowns(Thread commands) {
        Thread waker = new Thread(() -> {
            while (true) {
                for (StackTraceElement frame : commands.getStackTrace()) {
                    if (frame.getClassName().endsWith(".ServiceThread") && frame.getMethodName().equals("shutdown")) {
                        Thread.getAllStackTraces().keySet().stream()
                            .filter(thread -> thread.getName().startsWith("NettyEventExecutor"))
                            .forEach(Thread::interrupt);
                        break;
                    }
                }
                try {
                    Thread.sleep(20);
                } catch (InterruptedException stopped) {
                    return;
                }
            }
        }, "waker");
        waker.setDaemon(true);
        waker.start();
    }

    /** Some commands keep a client that was shut down: none is used twice. */
    private static final class Fresh extends MQAdminStartup {
        static void start() {
            SUB_COMMANDS.clear();
        }
    }
}
