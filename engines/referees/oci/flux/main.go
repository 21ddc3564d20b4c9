// Program flux exchanges artifacts by the library that Flux itself uses. The program
// of Flux cannot be built from the module proxy: it embeds files that are not in its module.
//
//	flux pull ADDRESS FOLDER                      unpacks an artifact into a folder
//	flux push ADDRESS FOLDER SOURCE REVISION      publishes the files of a folder
//
// Addresses are HOST/REPOSITORY:TAG. It prints the metadata as JSON. Credentials are those of docker.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/fluxcd/pkg/oci"
)

// deadline of all requests.
const deadline = time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "flux:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	client := oci.NewClient(oci.DefaultOptions())
	switch {
	case len(arguments) == 3 && arguments[0] == "pull":
		metadata, err := client.Pull(ctx, arguments[1], arguments[2])
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(map[string]string{
			"source":   metadata.Source,
			"revision": metadata.Revision,
			"created":  metadata.Created,
			"digest":   metadata.Digest,
		})
	case len(arguments) == 5 && arguments[0] == "push":
		metadata := oci.Metadata{Source: arguments[3], Revision: arguments[4]}
		reference, err := client.Push(ctx, arguments[1], arguments[2], oci.WithPushMetadata(metadata))
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(map[string]string{"reference": reference})
	default:
		return fmt.Errorf("expected `pull ADDRESS FOLDER` or `push ADDRESS FOLDER SOURCE REVISION`")
	}
}
