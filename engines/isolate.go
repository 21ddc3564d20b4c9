package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"syscall"
	"time"
	// Time zones come from the program, if the sandbox hides those of the machine.
	_ "time/tzdata"
)

// Of the limit of the process for data, tables of the Go runtime take a part that it does not count,
// though most of their pages are never touched.
const (
	runtimeTables = 76 << 20
	minMemory     = 40 << 20
	maxMemory     = 512 << 20
)

var errNetwork = errors.New("network access is refused")

// isolate takes away the parts of the process that results could depend on.
func isolate() {
	os.Clearenv()
	// Most requests are small: collect rarely below the limit.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(memoryLimit())
	time.Local = time.UTC
	http.DefaultTransport = refusingTransport{}
	http.DefaultClient = &http.Client{Transport: refusingTransport{}}
	log.SetOutput(io.Discard)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	// kustomize prints warnings of deprecated fields.
	os.Stderr = nil
}

// memoryLimit returns the bytes at which the collector works hard, below the limit of the process.
func memoryLimit() int64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_DATA, &limit); err != nil || limit.Cur > runtimeTables+maxMemory {
		return maxMemory
	}
	return max(int64(limit.Cur)-runtimeTables, minMemory)
}

type refusingTransport struct{}

func (refusingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return nil, fmt.Errorf("%w: %s", errNetwork, req.URL.Redacted())
}
