package main

// One row while it runs: its topics, groups and clients, which all carry the row's name, and its facts.

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const wait = 120 * time.Second

type fields map[string]interface{}

type row struct {
	label, name, namesrv string
	count                int
	closing              []func() error
}

var output sync.Mutex

func write(event string, told fields) {
	line, err := json.Marshal(told)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	rest := ""
	if len(told) > 0 {
		rest = "," + string(line[1:len(line)-1])
	}
	fmt.Fprintf(os.Stdout, "{\"event\":%q,\"at\":%d%s}\n", event, time.Now().UnixNano()/1e6, rest)
}

func (r *row) write(event string, told fields) {
	all := fields{"row": r.name}
	for name, value := range told {
		all[name] = value
	}
	write(event, all)
}

func (r *row) topic() string { return r.label + "-" + r.name }

func (r *row) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{r.namesrv})
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (r *row) producer(name string, queues int, selector producer.QueueSelector) rocketmq.Producer {
	made, err := rocketmq.NewProducer(
		producer.WithNsResolver(r.resolver()),
		producer.WithGroupName(r.topic()+"-"+name),
		producer.WithInstanceName(r.topic()+"-"+name),
		producer.WithDefaultTopicQueueNums(queues),
		producer.WithQueueSelector(selector),
		producer.WithSendMsgTimeout(10*time.Second),
	)
	must(err)
	must(made.Start())
	r.closing = append(r.closing, made.Shutdown)
	return made
}

// createTopic asks the broker by its address, which the client tells only in the id of a message it stored.
func (r *row) createTopic(queues int) {
	warm := r.producer("maker", 1, producer.NewRoundRobinQueueSelector())
	result, err := warm.SendSync(context.Background(), content(r.topic()+"-warm", 0))
	must(err)
	id, err := primitive.UnmarshalMsgID([]byte(result.OffsetMsgID))
	must(err)
	made, err := admin.NewAdmin(admin.WithResolver(r.resolver()))
	must(err)
	must(made.CreateTopic(context.Background(), admin.WithTopicCreate(r.topic()),
		admin.WithBrokerAddrCreate(fmt.Sprintf("%s:%d", id.Addr, id.Port)),
		admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues)))
	r.untilRoute(made, queues)
}

func (r *row) untilRoute(asked admin.Admin, queues int) {
	r.until("route of "+r.topic(), func() bool {
		found, err := asked.FetchPublishMessageQueues(context.Background(), r.topic())
		return err == nil && len(found) == queues
	})
}

func (r *row) until(what string, question func() bool) {
	for deadline := time.Now().Add(wait); !question(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			panic(fmt.Sprintf("no %s within %s", what, wait))
		}
	}
}

func (r *row) sent(index int, result *primitive.SendResult) {
	status := "SEND_OK"
	if result.Status != primitive.SendOK {
		status = fmt.Sprint(result.Status)
	}
	r.write("sent", fields{"index": index, "status": status, "msgId": result.MsgID,
		"offsetMsgId": result.OffsetMsgID, "queueId": result.MessageQueue.QueueId, "queueOffset": result.QueueOffset})
}

func (r *row) message(name string, message *primitive.MessageExt) int {
	properties := message.GetProperties()
	absent := func(key string) interface{} {
		if value, there := properties[key]; there {
			return value
		}
		return nil
	}
	index, err := strconv.Atoi(message.GetProperty("index"))
	must(err)
	r.write("message", fields{"consumer": name, "index": index, "sha1": digest(message.Body),
		"size": len(message.Body), "topic": message.Topic, "keys": absent("KEYS"), "tags": absent("TAGS"),
		"queueId": message.Queue.QueueId, "queueOffset": message.QueueOffset, "msgId": message.MsgId,
		"bornAt": message.BornTimestamp, "storeAt": message.StoreTimestamp,
		"reconsumeTimes": message.ReconsumeTimes, "properties": properties})
	return index
}

// tally knows which numbered messages have been dealt with.
type tally struct {
	mutex sync.Mutex
	seen  map[int]bool
}

func newTally() *tally { return &tally{seen: map[int]bool{}} }

func (t *tally) add(index int) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.seen[index] = true
}

func (t *tally) size() int {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return len(t.seen)
}

// push starts a push consumer; handle says whether the application succeeded.
func (r *row) push(group, name, tags string, handle func(index int, message *primitive.MessageExt) consumer.ConsumeResult,
	options ...consumer.Option) {
	made, err := rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNsResolver(r.resolver()),
		consumer.WithGroupName(group),
		consumer.WithInstance(r.topic() + "-" + name),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, options...)...)
	must(err)
	must(made.Subscribe(r.topic(), consumer.MessageSelector{Type: consumer.TAG, Expression: tags},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				if result := handle(r.message(name, message), message); result != consumer.ConsumeSuccess {
					return result, nil
				}
			}
			return consumer.ConsumeSuccess, nil
		}))
	must(made.Start())
	r.write("started", fields{"consumer": name})
	r.closing = append(r.closing, made.Shutdown)
}

func (r *row) close() {
	for i := len(r.closing) - 1; i >= 0; i-- {
		if err := r.closing[i](); err != nil {
			r.write("error", fields{"error": err.Error()})
		}
	}
}
