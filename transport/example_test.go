package transport_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func Example() {
	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	// With a broker: transport.Dial(ctx, "mqtt://localhost:1883", transport.Options{ClientID: "gateway-a"})
	client, err := transport.NewClient(store.Connect("gateway-a"), transport.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	if _, err := client.Set(ctx, "recipe", []byte("42"), transport.SetOptions{}); err != nil {
		log.Fatal(err)
	}
	_, err = client.Set(ctx, "recipe", []byte("43"), transport.SetOptions{Condition: transport.IfMissing})
	fmt.Println("there already:", errors.Is(err, transport.ErrConditionFailed))
	entry, err := client.Get(ctx, "recipe")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", entry.Value)
	// Output:
	// there already: true
	// 42
}

func ExampleClient_Watch() {
	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	client, err := transport.NewClient(store.Connect("gateway-a"), transport.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	watch, err := client.Watch("recipe")
	if err != nil {
		log.Fatal(err)
	}
	defer watch.Close()
	fmt.Println("exists:", (<-watch.Changes()).Exists)
	if _, err := client.Set(context.Background(), "recipe", []byte("42"), transport.SetOptions{}); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("now: %s\n", (<-watch.Changes()).Value)
	// Output:
	// exists: false
	// now: 42
}

func ExampleWill() {
	store, err := transporttest.NewStore(statestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	conn := store.Connect("gateway-a")
	client, err := transport.NewClient(conn, transport.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	// The will comes first: from the Set on, nothing can happen without it. The value
	// must be one that is never set again.
	will, err := client.SetWill(ctx, "present", []byte("gateway-a:1"))
	if err != nil {
		log.Fatal(err)
	}
	defer will.Close()
	if _, err := client.Set(ctx, "present", []byte("gateway-a:1"), transport.SetOptions{}); err != nil {
		log.Fatal(err)
	}

	conn.Cut() // as if the process had been killed
	<-will.Lost()
	conn.Restore()
	entry, err := client.Get(ctx, "present")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("present:", entry.Exists)
	// Output:
	// present: false
}

// In a container, the orchestrator sets the variables.
func ExampleFromEnv() {
	for name, value := range map[string]string{
		"AIO_BROKER_HOSTNAME": "aio-broker",
		"AIO_MQTT_CLIENT_ID":  "gateway-a",
		"AIO_MQTT_KEEP_ALIVE": "10",
	} {
		if err := os.Setenv(name, value); err != nil {
			log.Fatal(err)
		}
		defer os.Unsetenv(name)
	}
	address, options, err := transport.FromEnv("")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(address, options.ClientID, options.KeepAlive)
	// Then: client, err := transport.Dial(ctx, address, options)

	// Where another SDK in this process connects with the same variables:
	_, options, err = transport.FromEnv("-lease")
	fmt.Println(options.ClientID, err)

	defer os.Unsetenv("AIO_BROKER_TCP_PORT")
	_ = os.Setenv("AIO_BROKER_TCP_PORT", "mqtts")
	_, _, err = transport.FromEnv("")
	fmt.Println(err)
	// Output:
	// mqtts://aio-broker:8883 gateway-a 10s
	// gateway-a-lease <nil>
	// transport: environment: AIO_BROKER_TCP_PORT is "mqtts"; give a whole number from 1 to 65535, or leave it unset for 8883
}
