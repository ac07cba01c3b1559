// Command schema writes the JSON schema of the device plugin's configuration file,
// derived from the struct and its tags, for editors and for CI.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	out := flag.String("o", "config.schema.json", "`file` to write")
	flag.Parse()
	text, err := schema()
	if err == nil {
		err = os.WriteFile(*out, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "schema:", err)
		os.Exit(1)
	}
}
