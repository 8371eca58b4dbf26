package interop;

import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * Sees every request that a client sends, and every one it is sent, just before it is encoded or handled.
 * With {@code deaf} the broker's notice that a group changed is lost on arrival.
 */
final class Capture implements RPCHook {
    private static final int NOTIFY_CONSUMER_IDS_CHANGED = 40;

    private final Row row;
    private final String client;
    private final boolean write;
    private final boolean deaf;

    Capture(Row row, String client, boolean write, boolean deaf) {
        this.row = row;
        this.client = client;
        this.write = write;
        this.deaf = deaf;
    }

    @Override
    public void doBeforeRequest(String remote, RemotingCommand request) {
        if (write) {
            request.makeCustomHeaderToNet();
            row.write("request", "consumer", client, "code", request.getCode(), "remote", remote,
                "fields", request.getExtFields());
        }
        if (deaf && request.getCode() == NOTIFY_CONSUMER_IDS_CHANGED) {
            throw new IllegalStateException("notification dropped on purpose");
        }
    }

    @Override
    public void doAfterResponse(String remote, RemotingCommand request, RemotingCommand response) {
        // Replies are seen by their effects.
    }
}
