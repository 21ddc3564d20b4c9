package main

import (
	"encoding/base64"
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Limits of what is reported.
const (
	maxFields      = 100 // of a document
	maxDifferences = 1000
	maxCalls       = 50 // of a field
)

// compare lists fields that differ between two renderings.
func compare(first, second *rendering) []irreproducible {
	result := []irreproducible{}
	names := map[string]bool{}
	for name := range first.files {
		names[name] = true
	}
	for name := range second.files {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if first.files[name] == second.files[name] {
			continue
		}
		source := first.sites.short(name)
		for _, difference := range compareFiles(first.files[name], second.files[name]) {
			difference.Document = source
			difference.Calls = first.causes(source, difference.value)
			if len(result) == maxDifferences {
				return result
			}
			result = append(result, difference.irreproducible)
		}
	}
	return result
}

// causes lists the calls whose result is in the value of a field, or else all while the template was
// executed.
func (r *rendering) causes(source, value string) []call {
	calls := r.record.callsOf(source)
	for _, flattened := range r.sites.flattened {
		// Helpers can flatten files too.
		if flattened.Template == source || strings.HasPrefix(path.Base(flattened.Template), "_") {
			calls = append(calls, flattened)
		}
	}
	decoded, _ := base64.StdEncoding.DecodeString(value)
	certain := slices.DeleteFunc(slices.Clone(calls), func(c call) bool {
		return !slices.ContainsFunc(r.record.results[c], func(text string) bool {
			return strings.Contains(value, text) || strings.Contains(string(decoded), text)
		})
	})
	if len(certain) > 0 {
		calls = certain
	}
	return calls[:min(len(calls), maxCalls)]
}

// difference is a field that differs, with its value in the first document.
type difference struct {
	irreproducible
	value string
}

func compareFiles(first, second string) []difference {
	a, b := splitDocuments(first), splitDocuments(second)
	if len(a) != len(b) {
		return []difference{{value: first}}
	}
	var result []difference
	for i := range a {
		for _, found := range compareDocuments(a[i], b[i]) {
			found.Index = i
			result = append(result, found)
		}
	}
	return result
}

// compareDocuments returns the fields that differ. Comments and layout do not count.
func compareDocuments(first, second string) []difference {
	if first == second {
		return nil
	}
	var a, b any
	if yaml.Unmarshal([]byte(first), &a) != nil || yaml.Unmarshal([]byte(second), &b) != nil {
		return []difference{{value: first}}
	}
	return differences(a, b, "", nil)
}

var plainKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

func newDifference(field string, value any) difference {
	return difference{irreproducible: irreproducible{Field: field}, value: fmt.Sprint(value)}
}

func differences(a, b any, path string, found []difference) []difference {
	if len(found) >= maxFields || reflect.DeepEqual(a, b) {
		return found
	}
	mapA, isMapA := a.(map[string]any)
	mapB, isMapB := b.(map[string]any)
	if isMapA && isMapB {
		keys := map[string]bool{}
		for key := range mapA {
			keys[key] = true
		}
		for key := range mapB {
			keys[key] = true
		}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			valueA, inA := mapA[key]
			valueB, inB := mapB[key]
			child := path + keyPath(key)
			if inA != inB {
				found = append(found, newDifference(child, valueA))
			} else {
				found = differences(valueA, valueB, child, found)
			}
		}
		return found
	}
	listA, isListA := a.([]any)
	listB, isListB := b.([]any)
	if isListA && isListB && len(listA) == len(listB) {
		for i := range listA {
			found = differences(listA[i], listB[i], fmt.Sprintf("%s[%d]", path, i), found)
		}
		return found
	}
	return append(found, newDifference(path, a))
}

func keyPath(key string) string {
	if plainKey.MatchString(key) {
		return "." + key
	}
	return fmt.Sprintf("[%q]", key)
}
