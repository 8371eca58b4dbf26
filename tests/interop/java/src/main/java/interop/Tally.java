package interop;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.common.message.MessageExt;

/** Which numbered messages have been dealt with, and the moment when all expected ones were. */
final class Tally {
    private final int expected;
    private final Set<Integer> seen = ConcurrentHashMap.newKeySet();
    private final AtomicInteger total = new AtomicInteger();
    private final CountDownLatch complete = new CountDownLatch(1);

    Tally(int expected) {
        this.expected = expected;
    }

    void count(MessageExt message) {
        total.incrementAndGet();
        if (seen.add(Integer.parseInt(message.getUserProperty(Content.INDEX))) && seen.size() >= expected) {
            complete.countDown();
        }
    }

    int unique() {
        return seen.size();
    }

    int total() {
        return total.get();
    }

    boolean has(int index) {
        return seen.contains(index);
    }

    void await() throws InterruptedException {
        if (!complete.await(Row.WAIT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(
                seen.size() + " of " + expected + " messages within " + Row.WAIT_S + " s, " + total + " in all");
        }
    }
}
