package main

// What message number n looks like: the rules of ../content.py and ../java/.../Content.java, for the Go client.

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func content(topic string, index int) *primitive.Message {
	message := primitive.NewMessage(topic, body(index))
	if index%9 == 7 {
		message.WithTag("标签")
	} else if index%9 != 8 {
		message.WithTag(fmt.Sprintf("Tag%d", index%5))
	}
	if index%10 != 9 {
		message.WithKeys([]string{fmt.Sprintf("key-%d", index), fmt.Sprintf("键-%d", index%97)})
	}
	message.WithProperty("index", strconv.Itoa(index))
	message.WithProperty("colour", fmt.Sprintf("rouge é 红 🚀 %d", index%13))
	message.WithProperty("quoted", fmt.Sprintf("say \"hi\" \\ / <&> = ,;:\t%d", index%3))
	return message
}

func size(index int) int {
	if index%50 == 0 {
		return 4096 + index*37%2049
	}
	if index%7 == 0 {
		return 1 + index*13%16
	}
	return 1 + index*131%900
}

func body(index int) []byte {
	pattern := []byte(fmt.Sprintf("«%d» 消息 é 🚀 ", index))
	made := make([]byte, size(index))
	for i := range made {
		made[i] = pattern[i%len(pattern)]
	}
	return made
}

func digest(body []byte) string {
	sum := sha1.Sum(body)
	return hex.EncodeToString(sum[:])
}
