package main

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"

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
			// Helpers can flatten files too, so that all calls are possible causes.
			difference.Calls = append(first.record.callsOf(source), first.sites.flattened...)
			difference.Calls = difference.Calls[:min(len(difference.Calls), maxCalls)]
			if len(result) == maxDifferences {
				return result
			}
			result = append(result, difference)
		}
	}
	return result
}

func compareFiles(first, second string) []irreproducible {
	a, b := splitDocuments(first), splitDocuments(second)
	if len(a) != len(b) {
		return []irreproducible{{}}
	}
	var result []irreproducible
	for i := range a {
		for _, field := range compareDocuments(a[i], b[i]) {
			result = append(result, irreproducible{Index: i, Field: field})
		}
	}
	return result
}

// compareDocuments returns the paths of fields that differ. Comments and layout do not count.
func compareDocuments(first, second string) []string {
	if first == second {
		return nil
	}
	var a, b any
	if yaml.Unmarshal([]byte(first), &a) != nil || yaml.Unmarshal([]byte(second), &b) != nil {
		return []string{""}
	}
	return differences(a, b, "", nil)
}

var plainKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

func differences(a, b any, path string, found []string) []string {
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
				found = append(found, child)
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
	return append(found, path)
}

func keyPath(key string) string {
	if plainKey.MatchString(key) {
		return "." + key
	}
	return fmt.Sprintf("[%q]", key)
}
