package main

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/openapi"
)

// kustomizeLock guards global variables of kustomize, such as its schema.
var kustomizeLock sync.Mutex

// renderKustomization builds an overlay. It reads no file but those of the request.
func renderKustomization(req *kustomizationRequest) (answer *kustomizationAnswer) {
	answer = &kustomizationAnswer{Errors: []kustomizationError{}}
	defer func() {
		if reason := recover(); reason != nil {
			answer.Text = ""
			answer.addError(codeKustomize, fmt.Errorf("panic: %v", reason))
		}
	}()
	fileSystem := filesys.MakeFsInMemory()
	for _, name := range slices.Sorted(maps.Keys(req.Files)) {
		if err := checkName(name); err != nil {
			answer.addError(codeKustomize, err)
			return answer
		}
		if err := fileSystem.WriteFile("/"+name, req.Files[name]); err != nil {
			answer.addError(codeKustomize, fmt.Errorf("%s: %w", name, err))
			return answer
		}
	}
	folder := req.Path
	if len(folder) > 1 {
		folder = strings.TrimSuffix(folder, "/")
	}
	if folder != "." && folder != "" && checkName(folder) != nil {
		answer.addError(codeOutside, fmt.Errorf("the path %q is not a clean relative path", req.Path))
		return answer
	}
	if answer.Errors = scan(req.Files, path.Clean(folder)); len(answer.Errors) > 0 {
		return answer
	}
	text, err := build(fileSystem, path.Join("/", folder))
	if err != nil {
		answer.Errors = append(answer.Errors, kustomizationError{
			Code: errorCode(err), Message: shortened(err.Error()), File: kustomizationFile(req.Files, path.Clean(folder)),
		})
		return answer
	}
	answer.Text = text
	return answer
}

func build(fileSystem filesys.FileSystem, folder string) (string, error) {
	kustomizeLock.Lock()
	defer kustomizeLock.Unlock()
	openapi.ResetOpenAPI()
	options := krusty.MakeDefaultOptions()
	// The order of the program kustomize, if the overlay asks for none.
	options.Reorder = krusty.ReorderOptionUnspecified
	// The file system contains nothing but the files of the request.
	options.LoadRestrictions = types.LoadRestrictionsNone
	options.PluginConfig = types.DisabledPluginConfig()
	resources, err := krusty.MakeKustomizer(options).Run(fileSystem, folder)
	if err != nil {
		return "", err
	}
	text, err := resources.AsYaml()
	return string(text), err
}

func (a *kustomizationAnswer) addError(code string, err error) {
	a.Errors = append(a.Errors, kustomizationError{Code: code, Message: shortened(err.Error())})
}

// errorCode recognizes refusals that the scan did not foresee.
func errorCode(err error) string {
	message := err.Error()
	switch {
	case errors.Is(err, errNetwork), strings.Contains(message, errNetwork.Error()),
		strings.Contains(message, "no 'git' program"):
		return codeRemote
	case strings.Contains(message, "plugins disabled"), strings.Contains(message, "unable to load builtin"),
		strings.Contains(message, "must specify --enable-helm"):
		return codePlugin
	default:
		return codeKustomize
	}
}
