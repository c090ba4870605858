package protocol

// User properties of requests, replies and notifications.
const (
	// PropertyTimestamp carries a hybrid logical timestamp: the sender's in a request, the
	// version of the value in a reply or a notification.
	PropertyTimestamp = "__ts"
	// PropertyFencingToken carries the fencing token of a protected write.
	PropertyFencingToken = "__ft"
	// PropertyPersistence with the value "true" asks the store to keep the key of a SET on
	// disk.
	PropertyPersistence = "aio-persistence"
	// PropertySourceID repeats the client id. No broker checks it, so it proves nothing.
	PropertySourceID = "__srcId"
	// PropertyProtocolVersion is the version of the protocol.
	PropertyProtocolVersion = "__protVer"
	// PropertyPartition routes requests to one of the store's partitions.
	PropertyPartition = "$partition"
	// PropertyStatus and PropertyStatusMessage are the result of the invocation, not of
	// the command: 200 even for a refusal, 400 and above if the store could not evaluate
	// the request.
	PropertyStatus        = "__stat"
	PropertyStatusMessage = "__stMsg"
	// PropertyStore names the data of a store. The store sends it with each reply and
	// notification, and refuses a request that names another. It is an extension of this
	// project: other stores and clients ignore it.
	PropertyStore = "tenure-store"
	// PropertyInstance names the process of a store that is not its clients' broker. A store that
	// keeps its data over a restart has the same PropertyStore and another PropertyInstance: what
	// clients watched is forgotten. So it is for one client whose watches the store has ended. It is an extension like PropertyStore.
	PropertyInstance = "tenure-instance"
	// PropertyForced says that a DEL or VDEL takes a lease from its holder on purpose, and why, or on
	// which person's demand. A store of this project logs it; it changes nothing else.
	PropertyForced = "tenure-forced"
)

const (
	// ProtocolVersion is the value of PropertyProtocolVersion.
	ProtocolVersion = "1.0"
	// StatusOK is the value of PropertyStatus in every reply with a payload.
	StatusOK = "200"
	// StatusUnavailable is the value of PropertyStatus if the store could not take the request now. The
	// request may be a redelivery of one that was applied.
	StatusUnavailable = "503"
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
