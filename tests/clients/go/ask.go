// Asks with net/http, and prints each answer as a line of JSON: ask URL KEY COUNT METHOD [warm].
//
// With a fifth argument one plain request goes ahead, so that the others find a kept-alive connection: when that breaks
// before an answer, net/http sends a POST again by itself, because it carries an Idempotency-Key.
package main

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

type answer struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	Proto   string            `json:"proto"`
}

func ask(client *http.Client, method, url, key string) answer {
	var body io.Reader
	if method == "POST" {
		body = strings.NewReader(`{"amount": 10}`)
	}
	request, err := http.NewRequest(method, url, body)
	if err != nil {
		log.Fatal(err)
	}
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	response, err := client.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	headers := map[string]string{}
	for name := range response.Header {
		headers[strings.ToLower(name)] = response.Header.Get(name)
	}
	return answer{response.StatusCode, headers, string(text), response.Proto}
}

func main() {
	url, key, method := os.Args[1], os.Args[2], os.Args[4]
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{}
	if len(os.Args) > 5 {
		ask(client, "GET", url, "")
	}
	var all sync.WaitGroup
	answers := make([]answer, count)
	for i := range answers {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			answers[i] = ask(client, method, url, key)
		}(i)
	}
	all.Wait()
	for _, one := range answers {
		if err := json.NewEncoder(os.Stdout).Encode(one); err != nil {
			log.Fatal(err)
		}
	}
}
