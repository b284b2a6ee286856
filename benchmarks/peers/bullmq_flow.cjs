// BullMQ: a parent with children over one Redis server. The same lines in and out as benchmarks/peers/fan.py.

'use strict'

const { FlowProducer, Worker } = require('bullmq')
const readline = require('node:readline')

const CONCURRENCY = 8
const SLOW = 20
const POLL = 20
const AFTERWARDS = 3000
const SETTINGS = `${CONCURRENCY} jobs at a time in one Node.js process, flowProducer.add with all children`

const job = JSON.parse(process.argv[2])
const { hostname, port } = new URL(job.servers[0])
const connection = () => ({ host: hostname, port: Number(port), maxRetriesPerRequest: null })

const ended = new Map()
const continued = new Map()

const now = () => performance.timeOrigin + performance.now()
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const say = (answer) => process.stdout.write(JSON.stringify(answer) + '\n')
const of = (map, flow, empty) => map.get(flow) ?? map.set(flow, empty).get(flow)

async function member (each) {
  const { flow, number, ms } = each.data
  if (ms) await sleep(ms)
  const moments = of(of(ended, flow, new Map()), number, [])
  moments.push(now())
  return number
}

async function goOn (each) {
  of(continued, each.data.flow, []).push(now())
}

const flows = new FlowProducer({ connection: connection() })
const workers = [
  new Worker('members', member, { connection: connection(), concurrency: CONCURRENCY }),
  new Worker('continues', goOn, { connection: connection() })
]
for (const each of [flows, ...workers]) each.on('error', () => {})

function make (flow, members, ms) {
  const children = Array.from({ length: members }, (_, number) => ({
    name: 'member', queueName: 'members', data: { flow, number, ms }
  }))
  return flows.add({ name: 'continue', queueName: 'continues', data: { flow }, children })
}

const begun = (flow) => of(continued, flow, [])
const moments = (flow) => [...of(ended, flow, new Map()).values()]
const lastEnd = (flow) => moments(flow).flat().reduce((a, b) => Math.max(a, b))

async function several (number, count, members) {
  const seconds = []
  const late = []
  for (let each = 0; each < count; each++) {
    const flow = `flow-${number}-${each}`
    const began = now()
    await make(flow, members, 0)
    while (!begun(flow).length) await sleep(POLL)
    seconds.push((begun(flow)[0] - began) / 1000)
    late.push(begun(flow)[0] - lastEnd(flow))
  }
  return { seconds, late }
}

async function slow (flow, members, patience) {
  make(flow, members, SLOW).catch(() => {})
  while (moments(flow).length < members / 2) await sleep(POLL)
  say('half')
  const end = now() + patience * 1000
  while (!begun(flow).length && now() < end) await sleep(POLL)
  if (begun(flow).length) await sleep(AFTERWARDS)
  const first = begun(flow)[0]
  const all = moments(flow)
  return {
    ran: all.length,
    again: all.filter((each) => each.length > 1).length,
    continued: begun(flow).length,
    after: first === undefined ? null : (first - lastEnd(flow)) / 1000,
    early: first !== undefined && (all.length < members || all.some((each) => each[0] > first))
  }
}

async function main () {
  await Promise.all([flows, ...workers].map((each) => each.waitUntilReady()))
  await several(0, 1, 10)
  say(SETTINGS)
  let number = 0
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const told = JSON.parse(line)
    number++
    if (told.slow) say(await slow(`slow-${number}`, told.slow, told.patience))
    else say(await several(number, told.flows, told.members))
  }
  process.exit(0)
}

main()
