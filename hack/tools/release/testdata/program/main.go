// Command program stands for the binaries of a release. It needs a module, and compiles fast.
package main

import "github.com/google/go-containerregistry/pkg/v1/types"

func main() { println(types.OCILayer) }
