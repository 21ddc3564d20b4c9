// Program of the containers of real nodes: it is the sandbox of pods, and what test pods run.
//
//	pod               sleeps until a signal
//	pod serve :8080   answers every HTTP request with 200
//	pod exit 1        ends with this exit code
//	pod stay          ignores SIGTERM
package main

import (
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	args := os.Args[1:]
	if len(args) == 2 && args[0] == "exit" {
		code, err := strconv.Atoi(args[1])
		if err != nil {
			log.Fatal(err)
		}
		os.Exit(code)
	}
	if len(args) == 2 && args[0] == "serve" {
		ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		go func() { log.Fatal(http.ListenAndServe(args[1], ok)) }()
	}
	// The first process of a pod inherits orphans; the kernel reaps them.
	signal.Ignore(syscall.SIGCHLD)
	if len(args) == 1 && args[0] == "stay" {
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
		for {
			time.Sleep(time.Hour)
		}
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}
