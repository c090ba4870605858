package protocol

// User properties of requests, replies and notifications.
const (
	// PropertyTimestamp carries a hybrid logical clock: the sender's in a SET
	// request, the value's version in a reply or a notification.
	PropertyTimestamp = "__ts"
	// PropertyFencingToken carries the fencing token of a protected write.
	PropertyFencingToken = "__ft"
	// PropertyPersistence, with the value "true" on a SET, asks the store to keep the key
	// on disk.
	PropertyPersistence = "aio-persistence"
	// PropertySourceID repeats the client id. Nobody checks it, so nobody may
	// rely on it.
	PropertySourceID = "__srcId"
	// PropertyProtocolVersion says which version of the protocol is spoken.
	PropertyProtocolVersion = "__protVer"
	// PropertyPartition routes requests to one of the store's partitions.
	PropertyPartition = "$partition"
	// PropertyStatus and PropertyStatusMessage say how the invocation went, as
	// opposed to the command: 200 even for a refusal, 400 and above when the
	// request never reached the store's rules.
	PropertyStatus        = "__stat"
	PropertyStatusMessage = "__stMsg"
	// PropertyStore names the data of a store: the store sends it with each reply and
	// notification, and refuses a request that carries another. It is an extension of
	// ours; other stores and clients ignore it.
	PropertyStore = "tenure-store"
)

const (
	// ProtocolVersion is the value of PropertyProtocolVersion.
	ProtocolVersion = "1.0"
	// StatusOK is the value of PropertyStatus in every reply with a payload.
	StatusOK = "200"
	// ContentType is the MQTT content type of every payload.
	ContentType = "application/octet-stream"
)

// Verbs and options, as they are sent.
const (
	VerbSet       = "SET"
	VerbGet       = "GET"
	VerbDel       = "DEL"
	VerbVDel      = "VDEL"
	VerbKeyNotify = "KEYNOTIFY"

	OptionNX   = "NX"
	OptionNEX  = "NEX"
	OptionPX   = "PX"
	OptionStop = "STOP"
)

// Words of a notification.
const (
	NotifyWord   = "NOTIFY"
	NotifyValue  = "VALUE"
	NotifySet    = "SET"
	NotifyDelete = "DELETE"
	// NotifyDel is the documented spelling of NotifyDelete.
	NotifyDel = "DEL"
)
