package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"
)

// style is the meaning of a word in the output. It determines the word's colour.
type style int

const (
	plain   style = iota
	quiet         // Full: no change is expected
	good          // CanGrow: nodes can be added
	moving        // Growing: a change is under way
	bad           // Unknown, Refusing
	caution       // Open
)

// escapes maps styles to ANSI escape sequences (SGR).
var escapes = map[style]string{quiet: "90", good: "32", moving: "34", bad: "31", caution: "33"}

// controls matches the escape sequences of paint, and control characters other than a line feed. Strings from pods
// may contain control characters.
var controls = regexp.MustCompile("\x1b\\[(?:0|3[1-4]|90)m|[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x{9f}]")

// paint colours text. If the output has no colours, print removes them again.
func paint(s style, text string) string {
	if escape := escapes[s]; escape != "" && text != "" {
		return "\x1b[" + escape + "m" + text + "\x1b[0m"
	}
	return text
}

// cell is a cell of a table.
type cell struct {
	text  string
	style style
}

// column is a column of a table, with its header.
type column struct {
	name          string
	right, hidden bool // right: aligned to the right; hidden: not printed
}

// table has columns and rows. Each row has a cell for each column.
type table struct {
	columns []column
	rows    [][]cell
}

func (t *table) add(cells ...cell) { t.rows = append(t.rows, cells) }

func text(s string) cell { return cell{text: s} }

// write prints the table. Columns are two spaces apart, and no line ends with a space. All columns except the last are
// padded to the width of their longest cell.
func (t *table) write(w io.Writer, headers bool) {
	var header []cell
	for _, c := range t.columns {
		header = append(header, text(c.name))
	}
	rows := t.rows
	if headers {
		rows = append([][]cell{header}, rows...)
	}
	widths := make([]int, len(t.columns))
	for _, row := range rows {
		for i, c := range row[:len(row)-1] {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, c := range row {
			pad := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(c.text)))
			switch painted := paint(c.style, c.text); {
			case t.columns[i].hidden:
			case t.columns[i].right:
				line.WriteString(pad + painted + "  ")
			default:
				line.WriteString(painted + pad + "  ")
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// print prints the object in the format that -o selects. With -o name, it prints names. With -o wide or without -o, it
// calls text.
func (o *options) print(object any, names []string, text func(io.Writer)) error {
	var data []byte
	var err error
	switch o.output {
	case "json":
		if data, err = json.MarshalIndent(object, "", "    "); err == nil {
			data = append(data, '\n')
		}
	case "yaml":
		data, err = yaml.Marshal(object)
	case "name":
		for _, name := range names {
			data = append(data, name+"\n"...)
		}
	default:
		var b strings.Builder
		text(&b)
		data = []byte(controls.ReplaceAllStringFunc(b.String(), func(s string) string {
			if o.colored() && strings.HasPrefix(s, "\x1b[") {
				return s
			}
			return ""
		}))
	}
	if err != nil {
		return fmt.Errorf("encoding the output: %w", err)
	}
	if _, err := o.Out.Write(data); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// none stands for an unknown value.
const none = "–"

// age formats the time since t as kubectl does. If t is zero, it returns a dash.
func age(t, now time.Time) string {
	if t.IsZero() {
		return none
	}
	return duration.HumanDuration(max(0, now.Sub(t))) // the leader's clock may be ahead
}

// until formats the time until t.
func until(t, now time.Time) string {
	if !t.After(now) {
		return "now"
	}
	return "in " + duration.HumanDuration(t.Sub(now))
}

// clockTime formats t in the time zone of the output. If t is not on the same day as now, it adds the date.
func (o *options) clockTime(t, now time.Time) string {
	t, now = t.In(o.zone), now.In(o.zone)
	if t.Format(time.DateOnly) != now.Format(time.DateOnly) {
		return t.Format(time.DateTime)
	}
	return t.Format(time.TimeOnly)
}

// count formats a number with the words for it, such as "1 pod waits" or "2 pods wait".
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// list joins words: "a", "a and b", "a, b and c".
func list(words []string) string { return join(words, "and") }

// choice joins words: "a", "a or b", "a, b or c".
func choice(words []string) string { return join(words, "or") }

func join(words []string, last string) string {
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " " + last + " " + words[n-1]
	}
	return strings.Join(words, "")
}

// decimal formats a number below ten with one decimal place, and other numbers without decimal places.
func decimal(f float64) string {
	if f < 9.95 {
		return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0")
	}
	return strconv.FormatFloat(f, 'f', 0, 64)
}

// subjects removes the subject, such as "node(s) in a burst pool", from the sentence of a reason. A pod's condition
// needs the subject. In a table, the row shows the pool.
var subjects = strings.NewReplacer("node(s) in a burst pool, which ", "", "node(s) in a burst pool that ", "", "node(s) in a burst pool whose ", "its ", "node(s) in a burst pool ", "")
