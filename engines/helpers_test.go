package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

func TestMain(m *testing.M) {
	refereesFolder, program = os.Getenv("PLEACH_REFEREES"), os.Getenv("PLEACH_ENGINES")
	isolate()
	os.Exit(m.Run())
}

// refereesFolder contains the programs helm and kustomize. `make interop` sets it.
var refereesFolder string

// referee runs a program without environment and network credentials.
func referee(t *testing.T, folder, program string, arguments ...string) (string, string, error) {
	t.Helper()
	if refereesFolder == "" {
		t.Skip("PLEACH_REFEREES is not set: run make interop")
	}
	command := exec.Command(filepath.Join(refereesFolder, program), arguments...)
	command.Dir = folder
	home := t.TempDir()
	command.Env = []string{"HOME=" + home, "TZ=UTC"}
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	return stdout.String(), stderr.String(), err
}

// folderFiles reads all files below a folder.
func folderFiles(t *testing.T, folder string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(name)], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// writeFiles writes files into a new folder.
func writeFiles(t *testing.T, files map[string][]byte) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "files")
	for name, data := range files {
		file := filepath.Join(folder, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// texts makes files of texts.
func texts(files map[string]string) map[string][]byte {
	result := map[string][]byte{}
	for name, text := range files {
		result[name] = []byte(text)
	}
	return result
}

// smallChart is a chart with the given files.
func smallChart(files map[string]string) map[string][]byte {
	result := texts(files)
	if _, ok := result["Chart.yaml"]; !ok {
		result["Chart.yaml"] = []byte("apiVersion: v2\nname: small\nversion: 1.0.0\n")
	}
	return result
}

func chartOf(files map[string][]byte, values string) *chartRequest {
	return &chartRequest{
		Name: "release", Namespace: "space", Files: files, Values: json.RawMessage(values),
		Kubernetes: "v1.36.3", APIVersions: []string{"v1", "apps/v1", "example.com/v1", "example.com/v1/Widget"},
	}
}

// archived packs files as a chart package.
func archived(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	headers := map[*tar.Header][]byte{}
	var order []*tar.Header
	for _, name := range slices.Sorted(maps.Keys(files)) {
		header := &tar.Header{Name: "package/" + name, Mode: 0o644, Size: int64(len(files[name]))}
		headers[header] = files[name]
		order = append(order, header)
	}
	return archivedEntries(t, order, headers)
}

func archivedEntries(t *testing.T, order []*tar.Header, data map[*tar.Header][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	zipper := gzip.NewWriter(&out)
	writer := tar.NewWriter(zipper)
	for _, header := range order {
		if err := writer.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write(data[header]); err != nil {
			t.Fatal(err)
		}
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipper.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// listen counts connections to an address of loopback.
func listen(t *testing.T) (string, *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	count := new(atomic.Int64)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			count.Add(1)
			connection.Close()
		}
	}()
	return listener.Addr().String(), count
}

func answerText(t *testing.T, req *request) string {
	t.Helper()
	var out strings.Builder
	if err := writeAnswer(&out, req, maxAnswer); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
