package inference

import "weir/api/inference/jsonscan"

// Bounds of a conversation.
const (
	maxMessages  = 4096
	maxParts     = 1024
	maxToolCalls = 256
)

type role int

const (
	noRole role = iota
	system
	developer
	user
	assistant
	tool
)

func (p *parse) readMessages() {
	if !p.expect(jsonscan.Array) {
		return
	}
	at := p.Offset()
	if p.array(maxMessages, p.readMessage) == 0 {
		p.refuse(at, codeArrayShort, "%s must not be empty.")
	}
}

// message is what one message has, in whatever order it came.
type message struct {
	role       role
	content    jsonscan.Kind // Invalid: absent
	contentAt  int
	toolCalls  bool
	toolCallID bool
	reasoning  bool
}

func (p *parse) readMessage() {
	var msg message
	at := p.objectWithNulls("messages[]", func(name []byte) bool { return p.readMessageMember(name, &msg) })
	if p.Err() == nil {
		p.checkMessage(at, msg)
	}
}

// readMessageMember reads one member, or says that it is to be dropped.
func (p *parse) readMessageMember(name []byte, msg *message) (keep bool) {
	null := p.Kind() == jsonscan.Null
	switch string(name) {
	case "role":
		msg.role = p.readRole()
		return true
	case "content":
		msg.content, msg.contentAt = p.Kind(), p.Offset()
		p.readContent()
		return true
	case "name", "refusal", "reasoning", "reasoning_content":
		if null {
			return false
		}
		msg.reasoning = msg.reasoning || string(name) != "name"
		p.readString()
		return true
	case "tool_call_id":
		if null {
			return false
		}
		msg.toolCallID = true
		p.readText(maxName)
		return true
	case "tool_calls":
		if null {
			return false
		}
		msg.toolCalls = p.array(maxToolCalls, p.readToolCall) > 0
		return true
	case "function_call":
		if !null {
			p.refuse(p.Offset(), codeParameter, "%s is not supported. Use 'tool_calls'.")
		}
		return false
	default:
		return false
	}
}

func (p *parse) readRole() role {
	at := p.Offset()
	if !p.expect(jsonscan.String) {
		return noRole
	}
	switch string(jsonscan.Unquote(p.Text())) {
	case "system":
		return system
	case "developer":
		// Most chat templates drop a role that they don't know without a word.
		p.edits = append(p.edits, edit{from: at, to: p.Offset(), with: `"system"`, role: true})
		return developer
	case "user":
		return user
	case "assistant":
		return assistant
	case "tool":
		return tool
	default:
		p.refuse(at, codeValue, "%s must be one of system, developer, user, assistant and tool.")
		return noRole
	}
}

// checkMessage checks what only the whole message can tell.
func (p *parse) checkMessage(at int, msg message) {
	absent := msg.content == jsonscan.Invalid || msg.content == jsonscan.Null
	switch {
	case msg.role == noRole:
		p.missing(at, "role")
	case msg.role == tool && !msg.toolCallID:
		p.missing(at, "tool_call_id")
	case msg.role != assistant && msg.toolCalls:
		p.refuseMember(at, "tool_calls", codeValue, "%s belongs to messages of the assistant.")
	case absent && (msg.role != assistant || !msg.toolCalls && !msg.reasoning):
		p.missing(at, "content")
	}
}

func (p *parse) readContent() {
	switch p.Kind() {
	case jsonscan.String:
		p.Text()
	case jsonscan.Null:
		p.Null()
	case jsonscan.Array:
		at := p.Offset()
		if p.array(maxParts, p.readPart) == 0 {
			p.refuse(at, codeArrayShort, "%s must not be empty.")
		}
	case jsonscan.Invalid:
		p.Skip()
	default:
		p.refuse(p.Offset(), codeType, "%s must be a string or an array of content parts, but is %s.", p.Kind())
	}
}

// readPart reads a content part. Only what we know is kept: engines take a
// part's uuid, and the ids of media, as keys of a cache that all tenants share.
func (p *parse) readPart() {
	var kind string
	var has payload
	var file fileMembers
	edits := len(p.edits)
	at := p.object("messages[].content[]", func(name []byte) bool {
		switch member := payloadOf(string(name)); {
		case string(name) == "type":
			kind = p.readWord("text", "image_url", "input_audio", "audio_url", "video_url", "file", "refusal")
		case member == 0:
			return false
		default:
			has |= member
			p.readPayload(member, &file)
		}
		return true
	})
	switch {
	case p.Err() != nil:
	case kind == "":
		p.missing(at, "type")
	case has&payloadOf(kind) == 0:
		p.missing(at, kind)
	case has != payloadOf(kind):
		p.refuse(at, codeValue, "%s has members that don't belong to the type %q.", kind)
	case has == document:
		p.addFile(at, edits, file)
	}
}

// payload is the member that a part of some type carries, named as the type.
type payload uint

const (
	plain payload = 1 << iota
	refusal
	image
	sound
	video
	recording
	document
)

func payloadOf(name string) payload {
	switch name {
	case "text":
		return plain
	case "refusal":
		return refusal
	case "image_url":
		return image
	case "audio_url":
		return sound
	case "video_url":
		return video
	case "input_audio":
		return recording
	case "file":
		return document
	default:
		return 0
	}
}

func (p *parse) readPayload(member payload, file *fileMembers) {
	switch member {
	case image, sound, video:
		p.readMedia(member)
	case document:
		p.readFile(file)
	case recording:
		p.readRecording()
	default:
		p.readString()
	}
}

func (p *parse) readRecording() {
	data := false
	at := p.object("messages[].content[].input_audio", func(name []byte) bool {
		switch string(name) {
		case "data":
			data = true
			from := p.Offset()
			p.readString()
			p.call.MediaBytes += p.Offset() - from
		case "format":
			p.readText(16)
		default:
			return false
		}
		return true
	})
	p.need(at, "data", data)
	p.addRecording(at)
}

// readToolCall reads a call that the assistant made in an earlier turn.
func (p *parse) readToolCall() {
	function := false
	at := p.object("messages[].tool_calls[]", func(name []byte) bool {
		switch string(name) {
		case "id":
			p.readText(maxName)
		case "type":
			p.readWord("function")
		case "function":
			function = true
			p.readCalledFunction()
		default:
			return false
		}
		return true
	})
	p.need(at, "function", function)
}

func (p *parse) readCalledFunction() {
	named, arguments := false, false
	at := p.object("messages[].tool_calls[].function", func(name []byte) bool {
		switch string(name) {
		case "name":
			named = true
			p.readText(maxName)
		case "arguments":
			arguments = true
			p.readString()
		default:
			return false
		}
		return true
	})
	p.need(at, "name", named)
	p.need(at, "arguments", arguments)
}
