package transport_test

import (
	"fmt"
	"log"
	"os"

	"github.com/tenurelock/tenure/transport"
)

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
	address, options, err := transport.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(address, options.ClientID, options.KeepAlive)
	// Then: client, err := transport.Dial(ctx, address, options)

	// Where another SDK in this process connects with the same variables:
	_, options, err = transport.FromEnvWithSuffix("-lease")
	fmt.Println(options.ClientID, err)

	defer os.Unsetenv("AIO_BROKER_TCP_PORT")
	_ = os.Setenv("AIO_BROKER_TCP_PORT", "mqtts")
	_, _, err = transport.FromEnv()
	fmt.Println(err)
	// Output:
	// mqtts://aio-broker:8883 gateway-a 10s
	// gateway-a-lease <nil>
	// transport: environment: AIO_BROKER_TCP_PORT is "mqtts"; give a whole number from 1 to 65535, or leave it away for 8883
}
