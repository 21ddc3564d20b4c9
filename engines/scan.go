package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// scanner reads kustomizations before kustomize does, to refuse what leaves the request: with
// file, line and field, and before anything is dialled or executed.
type scanner struct {
	files   map[string][]byte
	folders map[string]bool
	visited map[string]bool
	errors  []kustomizationError
}

// scan checks the kustomization in a folder and all that it uses.
func scan(files map[string][]byte, folder string) []kustomizationError {
	s := &scanner{files: files, folders: map[string]bool{".": true}, visited: map[string]bool{}, errors: []kustomizationError{}}
	for name := range files {
		for dir := path.Dir(name); !s.folders[dir]; dir = path.Dir(dir) {
			s.folders[dir] = true
		}
	}
	if !s.folders[folder] {
		s.errors = append(s.errors, kustomizationError{
			Code: codeOutside, Message: fmt.Sprintf("%q is not among the folders of the request", folder),
		})
		return s.errors
	}
	s.folder(folder)
	return s.errors
}

// kustomizationFile returns the name of the file in a folder, or an empty text.
func kustomizationFile(files map[string][]byte, folder string) string {
	for _, name := range konfig.RecognizedKustomizationFileNames() {
		file := path.Join(folder, name)
		if _, ok := files[file]; ok {
			return file
		}
	}
	return ""
}

func (s *scanner) folder(folder string) {
	file := kustomizationFile(s.files, folder)
	if file == "" || s.visited[file] {
		return
	}
	s.visited[file] = true
	var document yaml.Node
	if err := yaml.Unmarshal(s.files[file], &document); err != nil {
		s.errors = append(s.errors, kustomizationError{
			Code: codeKustomize, Message: err.Error(), File: file, Line: lineOf(err.Error()),
		})
		return
	}
	if len(document.Content) == 0 {
		return
	}
	k := &kustomization{scanner: s, file: file, folder: folder}
	each(document.Content[0], func(key, value *yaml.Node) { k.field(key, value) })
}

// kustomization is one file that is scanned.
type kustomization struct {
	*scanner
	file   string
	folder string
}

func (k *kustomization) field(key, value *yaml.Node) {
	name := key.Value
	switch name {
	case "resources", "bases", "components", "crds", "configurations":
		items(value, name, func(item *yaml.Node, field string) { k.reference(item, field, item.Value) })
	case "generators", "transformers", "validators":
		items(value, name, k.plugin)
	case "patchesStrategicMerge":
		items(value, name, func(item *yaml.Node, field string) {
			if !isInline(item.Value) {
				k.reference(item, field, item.Value)
			}
		})
	case "patches", "patchesJson6902", "replacements":
		items(value, name, func(item *yaml.Node, field string) { k.child(item, field, "path") })
	case "openapi":
		k.child(value, name, "path")
	case "configMapGenerator", "secretGenerator":
		items(value, name, k.generator)
	case "helmCharts", "helmChartInflationGenerator", "helmGlobals":
		k.refuse(codePlugin, key, name, fmt.Sprintf("%s runs helm, which is not supported; list the chart under charts", name))
	}
}

func (k *kustomization) child(parent *yaml.Node, field, name string) {
	each(parent, func(key, value *yaml.Node) {
		if key.Value == name {
			value = resolve(value)
			k.reference(value, field+"."+name, value.Value)
		}
	})
}

func (k *kustomization) generator(parent *yaml.Node, field string) {
	each(parent, func(key, value *yaml.Node) {
		switch key.Value {
		case "files":
			items(value, field+".files", func(item *yaml.Node, field string) {
				source := item.Value
				if _, file, found := strings.Cut(source, "="); found && !isRemote(source) {
					source = file
				}
				k.reference(item, field, source)
			})
		case "envs":
			items(value, field+".envs", func(item *yaml.Node, field string) { k.reference(item, field, item.Value) })
		case "env":
			value = resolve(value)
			k.reference(value, field+".env", value.Value)
		}
	})
}

// plugin checks an entry of generators, transformers or validators: an inline configuration, a
// file with some, or a folder.
func (k *kustomization) plugin(item *yaml.Node, field string) {
	if isInline(item.Value) {
		k.pluginConfig(item, field, []byte(item.Value))
		return
	}
	if file, ok := k.reference(item, field, item.Value); ok {
		k.pluginConfig(item, field, k.files[file])
	}
}

func (k *kustomization) pluginConfig(item *yaml.Node, field string, text []byte) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var config struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string `yaml:"kind"`
		}
		err := decoder.Decode(&config)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			return // kustomize reports it
		}
		switch {
		case config.Kind == "HelmChartInflationGenerator":
			k.refuse(codePlugin, item, field, "HelmChartInflationGenerator runs helm, which is not supported")
		case config.Kind != "" && config.APIVersion != konfig.BuiltinPluginApiVersion:
			k.refuse(codePlugin, item, field, fmt.Sprintf(
				"%s of %q is no builtin of kustomize; plugins are not executed", config.Kind, config.APIVersion))
		}
	}
}

// reference checks a path or URL. It returns the file that is meant, if it is one.
func (k *kustomization) reference(node *yaml.Node, field, value string) (string, bool) {
	if value == "" {
		return "", false
	}
	target := path.Join(k.folder, value)
	_, isFile := k.files[target]
	switch {
	case isHTTP(value), isRemote(value) && !isFile:
		k.refuse(codeRemote, node, field, fmt.Sprintf("%q is not in the repository; add a copy", redacted(value)))
	case isFile && !path.IsAbs(value):
		return target, true
	case path.IsAbs(value) || !k.folders[target]:
		k.refuse(codeOutside, node, field, fmt.Sprintf("%q is not among the files of the bundle and its bases", value))
	default:
		k.scanner.folder(target)
	}
	return "", false
}

func (k *kustomization) refuse(code string, node *yaml.Node, field, message string) {
	k.errors = append(k.errors, kustomizationError{
		Code: code, Message: message, File: k.file, Line: node.Line, Field: field,
	})
}

// resolve follows an alias.
func resolve(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode && node.Alias != nil {
		return node.Alias
	}
	return node
}

func each(node *yaml.Node, do func(key, value *yaml.Node)) {
	node = resolve(node)
	if node.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		do(node.Content[i], node.Content[i+1])
	}
}

func items(node *yaml.Node, field string, do func(item *yaml.Node, field string)) {
	node = resolve(node)
	if node.Kind != yaml.SequenceNode {
		return
	}
	for i, item := range node.Content {
		do(resolve(item), fmt.Sprintf("%s[%d]", field, i))
	}
}

// isInline reports whether a text is YAML instead of a path.
func isInline(text string) bool {
	return strings.ContainsAny(text, "\n{")
}

var userPattern = regexp.MustCompile(`^[A-Za-z0-9_.~-]+@[^/]+[:/]`)

func isHTTP(value string) bool {
	parsed, err := url.Parse(value)
	return err == nil && (parsed.Scheme == "http" || parsed.Scheme == "https")
}

// isRemote recognizes at least all that kustomize fetches.
func isRemote(value string) bool {
	lower := strings.ToLower(strings.TrimSpace(value))
	return isHTTP(value) || strings.HasPrefix(lower, "git::") || strings.Contains(lower, "://") ||
		strings.HasPrefix(lower, "github.com/") || strings.HasPrefix(lower, "github.com:") ||
		userPattern.MatchString(lower)
}

// redacted hides a password in a URL.
func redacted(value string) string {
	if parsed, err := url.Parse(value); err == nil && parsed.User != nil {
		return parsed.Redacted()
	}
	return value
}

var linePattern = regexp.MustCompile(`\bline (\d+)`)

// lineOf finds a line in an error of the YAML parser, or returns 0.
func lineOf(message string) int {
	match := linePattern.FindStringSubmatch(message)
	if match == nil {
		return 0
	}
	line, _ := strconv.Atoi(match[1])
	return line
}
