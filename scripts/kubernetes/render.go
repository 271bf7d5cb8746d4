// Renders a chart's templates as helm does, as far as these use its functions: render DATA.json TEMPLATE...
// Prints each file whose name does not begin with an underscore.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
)

// The chart's files that are no templates.
type files struct{ folder string }

func (in files) Get(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(in.folder, name))
	return string(text), err
}

func render(data map[string]any, paths []string) error {
	data["Files"] = files{filepath.Dir(filepath.Dir(paths[0]))}
	all := template.New("chart").Option("missingkey=zero")
	all.Funcs(template.FuncMap{
		"append": func(list []any, item any) []any { return append(list, item) },
		"default": func(other, value any) any {
			if value == nil || value == "" {
				return other
			}
			return value
		},
		"hasPrefix": func(prefix, text string) bool { return strings.HasPrefix(text, prefix) },
		"include": func(name string, data any) (string, error) {
			var out bytes.Buffer
			err := all.ExecuteTemplate(&out, name, data)
			return out.String(), err
		},
		"int": func(value any) int {
			number, _ := strconv.Atoi(fmt.Sprint(value))
			return number
		},
		"join": func(separator string, list []any) string {
			words := []string{}
			for _, item := range list {
				words = append(words, fmt.Sprint(item))
			}
			return strings.Join(words, separator)
		},
		"list": func(items ...any) []any { return append([]any{}, items...) },
		"nindent": func(spaces int, text string) string {
			start := "\n" + strings.Repeat(" ", spaces)
			return start + strings.ReplaceAll(text, "\n", start)
		},
		"quote":     func(value any) string { return fmt.Sprintf("%q", fmt.Sprint(value)) },
		"replace":   func(old, new, text string) string { return strings.ReplaceAll(text, old, new) },
		"splitList": func(separator, text string) []string { return strings.Split(text, separator) },
		"toJson": func(value any) (string, error) {
			written, err := json.Marshal(value)
			return string(written), err
		},
		"trim":       strings.TrimSpace,
		"trimSuffix": func(suffix, text string) string { return strings.TrimSuffix(text, suffix) },
	})
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err == nil {
			_, err = all.New(path).Parse(string(source))
		}
		if err != nil {
			return err
		}
	}
	for _, path := range paths {
		if strings.HasPrefix(filepath.Base(path), "_") {
			continue
		}
		var out bytes.Buffer
		if err := all.ExecuteTemplate(&out, path, data); err != nil {
			return err
		}
		if text := strings.TrimSpace(out.String()); text != "" {
			fmt.Println("---\n" + text)
		}
	}
	return nil
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	var data map[string]any
	if err == nil {
		err = json.Unmarshal(text, &data)
	}
	if err == nil {
		err = render(data, os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
