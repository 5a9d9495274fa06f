// Package rules holds the repository's own rules as tests: a doc.go for every package, the direction of imports,
// programs that stay light, files of a readable length, no paths of a developer's machine and no hosts of registries.
//
// It has no code but tests. Data in: the files that git tracks and what `go list` says of them. It refuses exceptions:
// there is no allow-list. Rejected: leaving this to golangci-lint, which is too slow to build for every run and knows
// half of the rules.
package rules
