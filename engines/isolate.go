package main

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
	// Time zones come from the program, if the sandbox hides those of the machine.
	_ "time/tzdata"
)

// Of the limit of the process for data, tables of the Go runtime take a part that it does not count,
// though most of their pages are never touched.
const (
	runtimeTables = 70 << 20
	minMemory     = 32 << 20
	maxData       = 512 << 20
)

var errNetwork = errors.New("network access is refused")

// isolate takes away the parts of the process that results could depend on.
func isolate() {
	os.Clearenv()
	time.Local = time.UTC
	http.DefaultTransport = refusingTransport{}
	http.DefaultClient = &http.Client{Transport: refusingTransport{}}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	// After slog, which redirects the standard logger.
	log.SetOutput(fatalWriter{})
	// kustomize prints warnings of deprecated fields.
	os.Stderr = nil
}

// limitMemory fits the collector to the limit of the process. The caller can set that until it sends
// the request.
func limitMemory() {
	// Most requests are small: collect rarely below the limit.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(memoryLimit())
}

// memoryLimit returns the bytes at which the collector works hard, below the limit of the process.
func memoryLimit() int64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_DATA, &limit); err != nil || limit.Cur > maxData {
		limit.Cur = maxData
	}
	// The heap exceeds the limit of the collector for moments.
	return max((int64(limit.Cur)-runtimeTables)/5*3, minMemory)
}

// fatalWriter drops messages of the standard logger. Before log.Fatal ends the process, it panics
// instead, so that only one chart or overlay fails.
type fatalWriter struct{}

func (fatalWriter) Write(message []byte) (int, error) {
	callers := make([]uintptr, 16)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	for {
		frame, more := frames.Next()
		if strings.HasPrefix(frame.Function, "log.Fatal") || strings.HasPrefix(frame.Function, "log.(*Logger).Fatal") {
			panic(strings.TrimSpace(string(message)))
		}
		if !more {
			return len(message), nil
		}
	}
}

type refusingTransport struct{}

func (refusingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("%w: %s", errNetwork, req.URL.Redacted())
}
