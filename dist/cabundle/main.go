// Prints the certificates of public authorities as PEM, for the image.
package main

import (
	"encoding/pem"
	"fmt"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func main() {
	for root := range bundle.Roots() {
		if root.Constraint != nil { // cannot be expressed in PEM
			continue
		}
		block := &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}
		if err := pem.Encode(os.Stdout, block); err != nil {
			fmt.Fprintln(os.Stderr, "cabundle:", err)
			os.Exit(1)
		}
	}
}
