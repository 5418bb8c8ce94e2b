// Package markdown reads the parts of a page that the tests of the documentation need.
package markdown

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

// Page is a page of the documentation, as GitHub reads it.
type Page struct {
	// Path is the path of the file, from the root of the repository.
	Path string
	// Anchors are the names that links can have after a #, one for each heading.
	Anchors map[string]bool
	Links   []Link
	Blocks  []Block
	Tables  []Table
}

// Link is a link or a picture.
type Link struct {
	Target string
	Line   int
}

// Block is a fenced block of code.
type Block struct {
	// Info are the words after the opening fence; the first is the language.
	Info []string
	Text string
	// Line is the number of the text's first line.
	Line int
}

// Is reports whether the block has the language, and the mark among the words after it.
func (b *Block) Is(language, mark string) bool {
	return len(b.Info) > 1 && b.Info[0] == language && slices.Contains(b.Info[1:], mark)
}

// Table is a table, with the text of its cells.
type Table struct {
	Header []string
	Rows   []Row
}

// Row is a row of a table.
type Row struct {
	Cells []string
	Line  int
}

// Read reads the page with the path below root.
func Read(root, path string) (*Page, error) {
	source, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return nil, err
	}
	return Parse(path, source)
}

// Parse reads the page's source.
func Parse(path string, source []byte) (*Page, error) {
	document := goldmark.New(goldmark.WithExtensions(extension.Table)).Parser().Parse(text.NewReader(source))
	r := &reader{source: source, page: &Page{Path: path, Anchors: map[string]bool{}}}
	if err := ast.Walk(document, r.visit); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return r.page, nil
}

// Pages reads README.md and all pages in docs.
func Pages(root string) ([]*Page, error) {
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		return nil, err
	}
	paths := []string{"README.md"}
	for _, file := range files {
		paths = append(paths, "docs/"+filepath.Base(file))
	}
	pages := make([]*Page, len(paths))
	for i, path := range paths {
		if pages[i], err = Read(root, path); err != nil {
			return nil, err
		}
	}
	return pages, nil
}

// reader walks through a page.
type reader struct {
	source []byte
	page   *Page
	line   int // of the last block
}

func (r *reader) visit(node ast.Node, entering bool) (ast.WalkStatus, error) {
	if !entering {
		return ast.WalkContinue, nil
	}
	if node.Type() == ast.TypeBlock && node.Lines() != nil && node.Lines().Len() > 0 {
		r.line = r.lineOf(node.Lines().At(0).Start)
	}
	switch n := node.(type) {
	case *ast.Heading:
		r.page.anchor(r.text(n))
	case *ast.Link:
		r.page.Links = append(r.page.Links, Link{Target: string(n.Destination), Line: r.line})
	case *ast.Image:
		r.page.Links = append(r.page.Links, Link{Target: string(n.Destination), Line: r.line})
	case *ast.FencedCodeBlock:
		b := Block{Line: r.line, Text: string(n.Lines().Value(r.source))}
		if n.Info != nil {
			b.Info = strings.Fields(string(n.Info.Value(r.source)))
		}
		r.page.Blocks = append(r.page.Blocks, b)
	case *east.Table:
		r.table(n)
	}
	return ast.WalkContinue, nil
}

func (r *reader) table(node *east.Table) {
	t := Table{}
	for child := node.FirstChild(); child != nil; child = child.NextSibling() {
		var cells []string
		for cell := child.FirstChild(); cell != nil; cell = cell.NextSibling() {
			cells = append(cells, r.text(cell))
		}
		if _, ok := child.(*east.TableHeader); ok {
			t.Header = cells
		} else {
			t.Rows = append(t.Rows, Row{Cells: cells, Line: r.lineOf(child.FirstChild().Lines().At(0).Start)})
		}
	}
	r.page.Tables = append(r.page.Tables, t)
}

// text returns the text of the node, without markup.
func (r *reader) text(node ast.Node) string {
	var out bytes.Buffer
	_ = ast.Walk(node, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		if t, ok := n.(*ast.Text); ok && entering {
			out.Write(t.Segment.Value(r.source))
			if t.SoftLineBreak() {
				out.WriteByte(' ')
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.TrimSpace(out.String())
}

func (r *reader) lineOf(offset int) int { return bytes.Count(r.source[:offset], []byte("\n")) + 1 }

// anchor adds the anchor that GitHub makes from a heading. It has the heading's letters, digits, hyphens, underscores
// and spaces, and a number if the page already has this anchor.
func (p *Page) anchor(heading string) {
	slug := strings.Map(func(c rune) rune {
		switch {
		case c == ' ':
			return '-'
		case c == '-' || c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c):
			return unicode.ToLower(c)
		}
		return -1
	}, heading)
	unique := slug
	for n := 1; p.Anchors[unique]; n++ {
		unique = fmt.Sprintf("%s-%d", slug, n)
	}
	p.Anchors[unique] = true
}
