package markdown

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"poolpriority.dev/scheduler/test/must"
)

func TestParse(t *testing.T) {
	const source = "# A `page`, *read*\n\nA [link](gate.md#why) and\na [second](../pkg).\n\n## Why?\n\n## Why?\n\n" +
		"```sh runnable\nls\n\npwd\n```\n\n    not fenced\n\n```\nplain\n```\n\n" +
		"| code | what |\n|---|---|\n| `A` | says [so](a.md): `x \\| y` |\n| B | |\n\n![picture](demo.svg)\n"
	got := must.Get(Parse("docs/a.md", []byte(source)))(t)
	want := &Page{
		Path:    "docs/a.md",
		Anchors: map[string]bool{"a-page-read": true, "why": true, "why-1": true},
		Links:   []Link{{"gate.md#why", 3}, {"../pkg", 3}, {"a.md", 24}, {"demo.svg", 27}},
		Blocks:  []Block{{Info: []string{"sh", "runnable"}, Text: "ls\n\npwd\n", Line: 11}, {Text: "plain\n", Line: 19}},
		Tables: []Table{{Header: []string{"code", "what"}, Rows: []Row{
			{Cells: []string{"A", "says so: x | y"}, Line: 24}, {Cells: []string{"B", ""}, Line: 25}}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want,+got):\n%s", diff)
	}
	if !got.Blocks[0].Is("sh", "runnable") || got.Blocks[0].Is("yaml", "runnable") || got.Blocks[1].Is("", "runnable") {
		t.Error("which blocks are marked is wrong")
	}
}
