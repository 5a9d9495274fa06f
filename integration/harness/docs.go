package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// DocBlocks returns the blocks of one language in a page of docs/, so that what people are told to write is what the
// tests use. A page without one is an error.
func DocBlocks(page, language string) ([]string, error) {
	root, err := RepoRoot()
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(root, "docs", page))
	if err != nil {
		return nil, err
	}
	var out []string
	for i, part := range strings.Split(string(data), "```") {
		if block, ok := strings.CutPrefix(part, language+"\n"); ok && i%2 == 1 {
			out = append(out, block)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("docs/%s has no block of %s", page, language)
	}
	return out, nil
}

// DocCommands returns the lines of the sh blocks of a page that call program, as words.
func DocCommands(page, program string) ([][]string, error) {
	blocks, err := DocBlocks(page, "sh")
	if err != nil {
		return nil, err
	}
	var out [][]string
	for _, b := range blocks {
		for line := range strings.Lines(b) {
			if words := strings.Fields(line); len(words) > 0 && words[0] == program {
				out = append(out, words)
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("docs/%s does not call %s", page, program)
	}
	return out, nil
}
