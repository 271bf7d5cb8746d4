// Renders a chart's templates as helm does, as far as these use its functions: render VALUES.json TEMPLATE...
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/template"
)

func main() {
	text, err := os.ReadFile(os.Args[1])
	var data map[string]any
	if err == nil {
		err = json.Unmarshal(text, &data)
	}
	functions := template.FuncMap{
		"append": func(list []any, item any) []any { return append(list, item) },
		"default": func(other, value any) any {
			if value == nil || value == "" {
				return other
			}
			return value
		},
		"join": func(separator string, list []any) string {
			words := []string{}
			for _, item := range list {
				words = append(words, fmt.Sprint(item))
			}
			return strings.Join(words, separator)
		},
		"list":  func(items ...any) []any { return append([]any{}, items...) },
		"quote": func(value any) string { return fmt.Sprintf("%q", fmt.Sprint(value)) },
		"toJson": func(value any) (string, error) {
			written, err := json.Marshal(value)
			return string(written), err
		},
	}
	for _, path := range os.Args[2:] {
		var source []byte
		if err == nil {
			source, err = os.ReadFile(path)
		}
		var parsed *template.Template
		if err == nil {
			parsed, err = template.New(path).Option("missingkey=zero").Funcs(functions).Parse(string(source))
		}
		if err == nil {
			fmt.Println("---")
			err = parsed.Execute(os.Stdout, data)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
