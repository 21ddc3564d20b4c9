package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestRequestsAreChecked(t *testing.T) {
	cases := []struct{ text, message string }{
		{``, "EOF"},
		{`{"format": 2}`, "expected format 1, got 2"},
		{`{}`, "expected format 1, got 0"},
		{`{"format": 1} {}`, "one JSON value"},
		{`{"format": 1, "charts": {}}`, "cannot unmarshal"},
		{`{"format": 1, "charts": [{"files": {"a": "no base64"}}]}`, "base64"},
	}
	for _, c := range cases {
		if _, err := readRequest(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: got %v", c.text, err)
		}
	}
	if _, err := readRequest(strings.NewReader(`{"format": 1, "added": true}`)); err != nil {
		t.Error(err)
	}
}

func TestAnswersAreJSON(t *testing.T) {
	good := *chartOf(smallChart(map[string]string{"templates/a.yaml": "a: '<b>&'\n"}), `{}`)
	req := &request{Charts: []chartRequest{good, *chartOf(nil, `{}`)}, Kustomizations: []kustomizationRequest{{Path: "a"}, {Path: "b"}}}
	var answer struct {
		Format         int
		Engines        string
		Charts         []chartAnswer
		Kustomizations []kustomizationAnswer
	}
	text := answerText(t, req)
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatal(err)
	}
	if answer.Format != format || answer.Engines != version || len(answer.Charts) != 2 || len(answer.Kustomizations) != 2 {
		t.Errorf("got %+v", answer)
	}
	if strings.Contains(text, "null") != strings.Contains(text, `"hook":null`) || !strings.Contains(text, "<b>&") {
		t.Errorf("got %s", text)
	}
}

func TestLargeAnswersEnd(t *testing.T) {
	files := smallChart(map[string]string{"templates/a.yaml": "a: {{ repeat 5000 \"x\" }}\n"})
	for limit, expected := range map[int]error{5000: errTooLarge, 10_000: nil} {
		req := &request{Charts: []chartRequest{*chartOf(files, `{}`)}}
		if err := writeAnswer(io.Discard, req, limit); !errors.Is(err, expected) {
			t.Errorf("%d: got %v", limit, err)
		}
	}
}

func TestProcessIsIsolated(t *testing.T) {
	if _, err := http.Get("http://127.0.0.1:1/"); !errors.Is(err, errNetwork) {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() {
			if reason := recover(); reason == nil {
				t.Error("log.Fatal does not panic")
			}
		}()
		log.Print("is dropped")
		log.Fatal("message")
	}()
	if time.Now().Location() != time.UTC {
		t.Error("the time zone is not UTC")
	}
}
