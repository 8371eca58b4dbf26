// Runs rows with the Go client, in the manner of ../java: arguments say what to do, JSON lines what happened.
//
//	rows LABEL NAMESRV AT_A_TIME ROW=COUNT...
package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	if len(os.Args) < 6 || os.Args[1] != "rows" {
		fmt.Fprintln(os.Stderr, "usage: rows LABEL NAMESRV AT_A_TIME ROW=COUNT...")
		os.Exit(2)
	}
	rlog.SetLogLevel("error")
	label, namesrv := os.Args[2], os.Args[3]
	atATime, err := strconv.Atoi(os.Args[4])
	must(err)
	write("begin", fields{})
	room := make(chan bool, atATime)
	var left sync.WaitGroup
	for _, wanted := range os.Args[5:] {
		name, count, _ := strings.Cut(wanted, "=")
		number, err := strconv.Atoi(strings.TrimSuffix(count, "/alone"))
		must(err)
		r := &row{label: label, name: name, namesrv: namesrv, count: number}
		left.Add(1)
		room <- true
		go func() {
			tell(r)
			<-room
			left.Done()
		}()
	}
	left.Wait()
	write("finished", fields{})
}

func tell(r *row) {
	r.write("row-begin", fields{"count": r.count})
	defer func() {
		if broken := recover(); broken != nil {
			r.write("row-failed", fields{"error": fmt.Sprintf("%v\n%s", broken, debug.Stack())})
		}
		r.close()
		r.write("row-end", fields{})
	}()
	story, known := stories[r.name]
	if !known {
		panic("no such row")
	}
	story(r)
	r.write("row-told", fields{})
}
