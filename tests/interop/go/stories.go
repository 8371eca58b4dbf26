package main

// What each row does; the judging is done by tests/interop/checks.

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
)

const (
	batchSize = 10
	orders    = 100
	// The client tells nobody when its group has settled; a notified round takes far less, on a busy machine too.
	settleTime = 8 * time.Second
)

var stories = map[string]func(*row){
	"send-sync":       func(r *row) { sent(r, sendSync) },
	"send-async":      func(r *row) { sent(r, sendAsync) },
	"send-oneway":     func(r *row) { sent(r, sendOneway) },
	"send-batch":      func(r *row) { sent(r, sendBatch) },
	"send-queue":      sendQueue,
	"tag-filter":      tagFilter,
	"push-concurrent": pushConcurrent,
	"push-orderly":    pushOrderly,
	"delay":           delay,
	"broadcasting":    broadcasting,
	"retry":           retry,
}

var background = context.Background()

func counting(t *tally) func(int, *primitive.MessageExt) consumer.ConsumeResult {
	return func(index int, _ *primitive.MessageExt) consumer.ConsumeResult {
		t.add(index)
		return consumer.ConsumeSuccess
	}
}

func (r *row) untilSeen(t *tally, count int) {
	r.until(fmt.Sprintf("%d messages", count), func() bool { return t.size() >= count })
}

// sent makes the topic with the first message, and reads everything back when all is sent.
func sent(r *row, send func(*row, rocketmq.Producer)) {
	send(r, r.producer("producer", 4, producer.NewRoundRobinQueueSelector()))
	seen := newTally()
	r.push(r.topic(), "consumer", "*", counting(seen))
	r.untilSeen(seen, r.count)
}

func sendSync(r *row, p rocketmq.Producer) {
	for index := 0; index < r.count; index++ {
		result, err := p.SendSync(background, content(r.topic(), index))
		must(err)
		r.sent(index, result)
	}
}

func sendAsync(r *row, p rocketmq.Producer) {
	var left sync.WaitGroup
	window := make(chan bool, 64)
	for index := 0; index < r.count; index++ {
		number := index
		left.Add(1)
		window <- true
		must(p.SendAsync(background, func(_ context.Context, result *primitive.SendResult, err error) {
			if err != nil {
				r.write("failed", fields{"index": number, "error": err.Error()})
			} else {
				r.sent(number, result)
			}
			<-window
			left.Done()
		}, content(r.topic(), number)))
	}
	left.Wait()
}

func sendOneway(r *row, p rocketmq.Producer) {
	for index := 0; index < r.count; index++ {
		must(p.SendOneWay(background, content(r.topic(), index)))
	}
	// A consumer refuses to start before its topic has a route, which the first of these makes.
	asked, err := admin.NewAdmin(admin.WithResolver(r.resolver()))
	must(err)
	r.untilRoute(asked, 4)
}

func sendBatch(r *row, p rocketmq.Producer) {
	for first := 0; first < r.count; first += batchSize {
		messages := make([]*primitive.Message, 0, batchSize)
		for index := first; index < first+batchSize; index++ {
			messages = append(messages, content(r.topic(), index))
		}
		result, err := p.SendSync(background, messages...)
		must(err)
		r.sent(first, result)
	}
}

func sendQueue(r *row) {
	r.createTopic(8)
	p := r.producer("producer", 8, byIndex{})
	sendSync(r, p)
	seen := newTally()
	r.push(r.topic(), "consumer", "*", counting(seen))
	r.untilSeen(seen, r.count)
}

// byIndex chooses the queue that the message's number says.
type byIndex struct{}

func (byIndex) Select(message *primitive.Message, queues []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	return chosen(queues, number(message)%len(queues))
}

// byOrder gives all steps of an order one queue.
type byOrder struct{}

func (byOrder) Select(message *primitive.Message, queues []*primitive.MessageQueue, _ string) *primitive.MessageQueue {
	return chosen(queues, number(message)%orders%len(queues))
}

func chosen(queues []*primitive.MessageQueue, id int) *primitive.MessageQueue {
	for _, queue := range queues {
		if queue.QueueId == id {
			return queue
		}
	}
	panic(fmt.Sprintf("no queue %d of %d", id, len(queues)))
}

func number(message *primitive.Message) int {
	var index int
	_, err := fmt.Sscan(message.GetProperty("index"), &index)
	must(err)
	return index
}

func tagFilter(r *row) {
	tags := []string{"Aa", "BB", "TagA", "TagB", ""}
	p := r.producer("producer", 4, producer.NewRoundRobinQueueSelector())
	for index := 0; index < r.count; index++ {
		message := content(r.topic(), index)
		message.RemoveProperty(primitive.PropertyTags)
		if tag := tags[index%len(tags)]; tag != "" {
			message.WithTag(tag)
		}
		result, err := p.SendSync(background, message)
		must(err)
		r.sent(index, result)
	}
	one, two := newTally(), newTally()
	r.push(r.topic()+"-one", "one", "Aa", counting(one))
	r.push(r.topic()+"-two", "two", "BB || TagA", counting(two))
	r.untilSeen(one, r.count/len(tags))
	r.untilSeen(two, 2*r.count/len(tags))
}

func pushConcurrent(r *row) {
	r.createTopic(8)
	seen := map[string]*tally{"red": newTally(), "blue": newTally()}
	for group, got := range seen {
		for member := 0; member < 3; member++ {
			r.push(r.topic()+"-"+group, fmt.Sprintf("%s%d", group, member), "*", counting(got))
		}
	}
	time.Sleep(settleTime)
	sendAsync(r, r.producer("producer", 8, producer.NewRoundRobinQueueSelector()))
	for _, got := range seen {
		r.untilSeen(got, r.count)
	}
}

func pushOrderly(r *row) {
	r.createTopic(4)
	sendSync(r, r.producer("producer", 4, byOrder{}))
	seen := newTally()
	var mutex sync.Mutex
	failed := map[int]bool{}
	// One member: a queue it gives up stays locked until the lock runs out, a minute later.
	for _, name := range []string{"left"} {
		r.push(r.topic(), name, "*", func(index int, message *primitive.MessageExt) consumer.ConsumeResult {
			mutex.Lock()
			done := index%97 != 0 || failed[index]
			failed[index] = true
			mutex.Unlock()
			r.write("handled", fields{"consumer": name, "index": index, "queueId": message.Queue.QueueId, "done": done})
			if !done {
				return consumer.SuspendCurrentQueueAMoment
			}
			seen.add(index)
			return consumer.ConsumeSuccess
		}, consumer.WithConsumerOrder(true), consumer.WithSuspendCurrentQueueTimeMillis(10*time.Millisecond))
	}
	r.untilSeen(seen, r.count)
}

func delay(r *row) {
	levels := []int{1, 2, 99}
	r.createTopic(4)
	seen := newTally()
	r.push(r.topic(), "consumer", "*", counting(seen))
	p := r.producer("producer", 4, producer.NewRoundRobinQueueSelector())
	for index := 0; index < r.count; index++ {
		result, err := p.SendSync(background, content(r.topic(), index).WithDelayTimeLevel(levels[index%len(levels)]))
		must(err)
		r.sent(index, result)
	}
	r.untilSeen(seen, r.count)
}

func broadcasting(r *row) {
	r.createTopic(4)
	seen := []*tally{newTally(), newTally(), newTally()}
	for member, got := range seen {
		r.push(r.topic(), fmt.Sprintf("c%d", member), "*", counting(got), consumer.WithConsumerModel(consumer.BroadCasting))
	}
	time.Sleep(settleTime)
	sendAsync(r, r.producer("producer", 4, producer.NewRoundRobinQueueSelector()))
	for _, got := range seen {
		r.untilSeen(got, r.count)
	}
}

func retry(r *row) {
	r.createTopic(4)
	sendAsync(r, r.producer("producer", 4, producer.NewRoundRobinQueueSelector()))
	seen := newTally()
	var mutex sync.Mutex
	failed := map[int]bool{}
	r.push(r.topic(), "consumer", "*", func(index int, _ *primitive.MessageExt) consumer.ConsumeResult {
		mutex.Lock()
		defer mutex.Unlock()
		if !failed[index] {
			failed[index] = true
			return consumer.ConsumeRetryLater
		}
		seen.add(index)
		return consumer.ConsumeSuccess
	})
	r.untilSeen(seen, r.count)
}
