package main

import (
	"encoding/base64"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/gobwas/glob"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"sigs.k8s.io/yaml"
)

// Helm's .Files.AsConfig and .Files.AsSecrets drop the folders of files. Of two files with the same
// name, Helm takes one at random. A chart with such files gets other objects as .Files: in the
// first pass the last file wins, in the second one the first.

// hasTwins reports whether a chart or subchart has two files with the same name.
func hasTwins(c *chart.Chart) bool {
	seen := map[string]bool{}
	for _, file := range c.Files {
		name := path.Base(file.Name)
		if seen[name] {
			return true
		}
		seen[name] = true
	}
	return slices.ContainsFunc(c.Dependencies(), hasTwins)
}

// replaceFiles replaces .Files in the data of a template, and in that of subcharts.
func replaceFiles(data map[string]any, pass int) {
	if pass == 1 {
		data["Files"] = lastFiles(filesOf(data["Files"]))
	} else {
		data["Files"] = firstFiles(filesOf(data["Files"]))
	}
	subcharts, _ := data["Subcharts"].(map[string]any)
	for _, subchart := range subcharts {
		if data, ok := subchart.(map[string]any); ok {
			replaceFiles(data, pass)
		}
	}
}

// filesOf reads Helm's type, which has no public name.
func filesOf(value any) map[string][]byte {
	switch value := value.(type) {
	case lastFiles:
		return value
	case firstFiles:
		return value
	}
	plain := reflect.TypeFor[map[string][]byte]()
	files := reflect.ValueOf(value)
	if !files.IsValid() || !files.CanConvert(plain) {
		return nil
	}
	return files.Convert(plain).Interface().(map[string][]byte)
}

// Functions of .Files, as Helm defines them.

func getFile(files map[string][]byte, name string) []byte {
	if data, ok := files[name]; ok {
		return data
	}
	return []byte{}
}

func globFiles(files map[string][]byte, pattern string) map[string][]byte {
	matcher, err := glob.Compile(pattern, '/')
	if err != nil {
		matcher = glob.MustCompile("**")
	}
	result := map[string][]byte{}
	for name, data := range files {
		if matcher.Match(name) {
			result[name] = data
		}
	}
	return result
}

func fileLines(files map[string][]byte, name string) []string {
	if len(files[name]) == 0 {
		return []string{}
	}
	return strings.Split(strings.TrimSuffix(string(files[name]), "\n"), "\n")
}

func flatten(files map[string][]byte, names []string, encode func([]byte) string) string {
	result := map[string]string{}
	for _, name := range names {
		result[path.Base(name)] = encode(files[name])
	}
	text, err := yaml.Marshal(result)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(text), "\n")
}

func ascending(files map[string][]byte) []string {
	return slices.Sorted(maps.Keys(files))
}

func descending(files map[string][]byte) []string {
	names := ascending(files)
	slices.Reverse(names)
	return names
}

func plain(data []byte) string { return string(data) }

type lastFiles map[string][]byte

func (f lastFiles) GetBytes(name string) []byte   { return getFile(f, name) }
func (f lastFiles) Get(name string) string        { return string(getFile(f, name)) }
func (f lastFiles) Glob(pattern string) lastFiles { return globFiles(f, pattern) }
func (f lastFiles) Lines(name string) []string    { return fileLines(f, name) }
func (f lastFiles) AsConfig() string              { return flatten(f, ascending(f), plain) }
func (f lastFiles) AsSecrets() string {
	return flatten(f, ascending(f), base64.StdEncoding.EncodeToString)
}

type firstFiles map[string][]byte

func (f firstFiles) GetBytes(name string) []byte    { return getFile(f, name) }
func (f firstFiles) Get(name string) string         { return string(getFile(f, name)) }
func (f firstFiles) Glob(pattern string) firstFiles { return globFiles(f, pattern) }
func (f firstFiles) Lines(name string) []string     { return fileLines(f, name) }
func (f firstFiles) AsConfig() string               { return flatten(f, descending(f), plain) }
func (f firstFiles) AsSecrets() string {
	return flatten(f, descending(f), base64.StdEncoding.EncodeToString)
}
